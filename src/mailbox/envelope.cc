#include "mailbox/envelope.h"

#include <utility>

namespace farandole {
namespace {

enum class Kind : std::uint8_t { kOffer = 1, kAcceptance, kRefusal, kData };

constexpr std::size_t kDataHeaderBytes = sizeof(Kind) + sizeof(std::uint64_t);

struct Encoder {
  ByteWriter& writer;

  void begin(Kind kind, std::uint64_t id) const {
    writer.put(kind);
    writer.put(id);
  }
  void operator()(const Offer& offer) const {
    begin(Kind::kOffer, offer.id);
    writer.put(offer.group);
    writer.put_text(offer.channel);
    writer.put(offer.tag);
    writer.put(offer.dtype);
    writer.put(offer.bytes);
    writer.put_text(offer.title);
    writer.put_text(offer.call_error);
    writer.put_text(offer.data);
  }
  void operator()(const Acceptance& acceptance) const { begin(Kind::kAcceptance, acceptance.id); }
  void operator()(const Refusal& refusal) const {
    begin(Kind::kRefusal, refusal.id);
    writer.put_text(refusal.text);
  }
  void operator()(const DataHeader& header) const { begin(Kind::kData, header.id); }
};

Offer read_offer(ByteReader& reader, std::uint64_t id) {
  Offer offer;
  offer.id = id;
  offer.group = reader.get<GroupId>();
  offer.channel = reader.get_text();
  offer.tag = reader.get<std::int32_t>();
  offer.dtype = reader.get<DType>();
  offer.bytes = reader.get<std::uint64_t>();
  offer.title = reader.get_text();
  offer.call_error = reader.get_text();
  offer.data = reader.get_text();
  return offer;
}

bool is_valid(const Offer& offer) {
  return static_cast<std::size_t>(offer.dtype) < kDTypes.size() &&
         (offer.is_complete() || offer.data.empty());
}

Status error_of(std::size_t bytes) {
  return Status::stop("an envelope of " + std::to_string(bytes) +
                      " bytes makes no sense; do all ranks run the same version of Farandole?");
}

}  // namespace

Bytes encode(const Envelope& envelope) {
  ByteWriter writer;
  std::visit(Encoder{writer}, envelope);
  return writer.take();
}

Result<OpenedEnvelope> open_envelope(std::span<const std::byte> bytes) {
  ByteReader reader(bytes);
  const auto kind = reader.get<Kind>();
  const auto id = reader.get<std::uint64_t>();
  if (!reader.ok()) return error_of(bytes.size());
  OpenedEnvelope opened;
  switch (kind) {
    case Kind::kOffer: {
      Offer offer = read_offer(reader, id);
      if (!reader.ok() || !reader.at_end() || !is_valid(offer)) return error_of(bytes.size());
      opened.envelope = std::move(offer);
      return opened;
    }
    case Kind::kAcceptance:
      opened.envelope = Acceptance{id};
      break;
    case Kind::kRefusal:
      opened.envelope = Refusal{id, reader.get_text()};
      break;
    case Kind::kData:
      return OpenedEnvelope{DataHeader{id}, bytes.subspan(kDataHeaderBytes)};
    default:
      return error_of(bytes.size());
  }
  if (!reader.ok() || !reader.at_end()) return error_of(bytes.size());
  return opened;
}

}  // namespace farandole

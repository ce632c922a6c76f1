#include "mailbox/envelope.h"

#include <utility>

namespace farandole {
namespace {

enum class EnvelopeKind : std::uint8_t { kOffer = 1, kAcceptance, kRefusal, kData };

constexpr std::size_t kDataHeaderBytes = sizeof(EnvelopeKind) + sizeof(std::uint64_t);

struct Encoder {
  ByteWriter& writer;

  void begin(EnvelopeKind kind, std::uint64_t id) const {
    writer.put(kind);
    writer.put(id);
  }
  void operator()(const Offer& offer) const {
    begin(EnvelopeKind::kOffer, offer.id);
    writer.put(offer.group);
    writer.put_text(offer.channel);
    writer.put(offer.tag);
    writer.put(offer.dtype);
    writer.put(offer.bytes);
    writer.put_text(offer.title);
    writer.put_text(offer.call_error);
    writer.put_text(offer.data);
  }
  void operator()(const Acceptance& acceptance) const {
    begin(EnvelopeKind::kAcceptance, acceptance.id);
  }
  void operator()(const Refusal& refusal) const {
    begin(EnvelopeKind::kRefusal, refusal.id);
    writer.put_text(refusal.text);
  }
  void operator()(const DataHeader& header) const { begin(EnvelopeKind::kData, header.id); }
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

Status invalid_envelope_error(std::size_t bytes) {
  return Status::stop("an envelope of " + std::to_string(bytes) +
                      " bytes makes no sense; do all ranks run the same version of Farandole?");
}

}  // namespace

Bytes encode(const Envelope& envelope) {
  ByteWriter writer;
  std::visit(Encoder{writer}, envelope);
  return writer.take();
}

Result<DecodedEnvelope> decode_envelope(std::span<const std::byte> bytes) {
  ByteReader reader(bytes);
  const auto kind = reader.get<EnvelopeKind>();
  const auto id = reader.get<std::uint64_t>();
  if (!reader.ok()) return invalid_envelope_error(bytes.size());
  DecodedEnvelope decoded;
  switch (kind) {
    case EnvelopeKind::kOffer: {
      Offer offer = read_offer(reader, id);
      if (!reader.ok() || !reader.at_end() || !is_valid(offer))
        return invalid_envelope_error(bytes.size());
      decoded.envelope = std::move(offer);
      return decoded;
    }
    case EnvelopeKind::kAcceptance:
      decoded.envelope = Acceptance{id};
      break;
    case EnvelopeKind::kRefusal:
      decoded.envelope = Refusal{id, reader.get_text()};
      break;
    case EnvelopeKind::kData:
      return DecodedEnvelope{DataHeader{id}, bytes.subspan(kDataHeaderBytes)};
    default:
      return invalid_envelope_error(bytes.size());
  }
  if (!reader.ok() || !reader.at_end()) return invalid_envelope_error(bytes.size());
  return decoded;
}

}  // namespace farandole

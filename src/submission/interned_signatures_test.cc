#include "submission/interned_signatures.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "submission/submission_check.h"

namespace farandole {
namespace {

Submission allreduce_of(std::int64_t rows, const std::string& name = "x") {
  Submission submission;
  submission.operation = Operation::kAllreduce;
  submission.name = name;
  submission.dtype = DType::kFloat32;
  submission.shape = {rows, 2};
  return submission;
}

TEST(InternedSignatures, ARepeatedCallFindsItsEntryAgain) {
  InternedSignatures interned(8);
  InternedSignatures::Entry& first = *interned.acquire(allreduce_of(3));
  EXPECT_EQ(first.interned.signature, signature_of(allreduce_of(3)));
  EXPECT_EQ(first.interned.digest, digest_of(first.interned.signature));
  InternedSignatures::release(first);
  EXPECT_EQ(interned.acquire(allreduce_of(3)), &first);
}

TEST(InternedSignatures, AChangedCallGetsANewSignature) {
  InternedSignatures interned(8);
  InternedSignatures::release(*interned.acquire(allreduce_of(3)));
  const InternedSignatures::Entry& changed = *interned.acquire(allreduce_of(4));
  EXPECT_EQ(changed.interned.signature, signature_of(allreduce_of(4)));
  EXPECT_EQ(changed.interned.digest, digest_of(changed.interned.signature));
  EXPECT_EQ(interned.size(), 1U);
}

TEST(InternedSignatures, EntriesInUseStayWhenThereAreTooMany) {
  InternedSignatures interned(2);
  InternedSignatures::Entry& a = *interned.acquire(allreduce_of(1, "a"));
  InternedSignatures::release(*interned.acquire(allreduce_of(1, "b")));
  (void)interned.acquire(allreduce_of(1, "c"));
  EXPECT_EQ(interned.size(), 2U);
  EXPECT_EQ(a.interned.signature.name, "a");
}

TEST(InternedSignatures, ANameInUseCannotBeAcquired) {
  InternedSignatures interned(2);
  InternedSignatures::Entry* const first = interned.acquire(allreduce_of(1));
  EXPECT_EQ(interned.acquire(allreduce_of(2)), nullptr);
  EXPECT_EQ(first->interned.signature, signature_of(allreduce_of(1)));
}

TEST(InternedSignatures, ARetiredNameStaysInUseWithoutAnEntry) {
  InternedSignatures interned(2);
  interned.retire(*interned.acquire(allreduce_of(1, "a")));
  EXPECT_EQ(interned.size(), 0U);
  EXPECT_EQ(interned.acquire(allreduce_of(2, "a")), nullptr);
  InternedSignatures::Entry& b = *interned.acquire(allreduce_of(1, "b"));
  interned.erase(b);
  EXPECT_EQ(interned.size(), 0U);
  EXPECT_NE(interned.acquire(allreduce_of(1, "b")), nullptr);
}

TEST(InternedSignatures, AnInvalidCallDoesNotShareTheSignatureOfAValidOne) {
  InternedSignatures interned(8);
  Submission call = allreduce_of(3);
  Submission wrong = call;
  wrong.call_error = "no";
  InternedSignatures::release(*interned.acquire(wrong));
  InternedSignatures::Entry& right = *interned.acquire(call);
  EXPECT_EQ(right.interned.signature, signature_of(call));
  InternedSignatures::release(right);
  wrong.shape = {};
  wrong.call_error = std::string(2 * kCallErrorBytesMax, 'n');
  EXPECT_EQ(interned.acquire(wrong)->interned.problem, "");
}

// Compares submissions that differ in one field or in several. Some of these fields are not part of
// the signature.
TEST(InternedSignatures, IsSignatureOfIsTrueForEqualSignaturesOnly) {
  Submission base = allreduce_of(3);
  std::vector<Submission> all(10, base);
  all[1].name = "y";
  all[2].operation = Operation::kBroadcast;
  all[3].operation = Operation::kAllgather;
  all[4].dtype = DType::kInt32;
  all[5].shape = {3, 2, 1};
  all[6].shape = {4, 2};
  all[7].reduce_op = ReduceOp::kMax;
  all[8].prescale = 2;
  all[9].postscale = -1;
  for (const Operation operation : {Operation::kBroadcast, Operation::kAllgather}) {
    Submission other = base;
    other.operation = operation;
    other.root_rank = 1;
    all.push_back(other);
    other.shape = {5, 2};
    all.push_back(other);
    other.reduce_op = ReduceOp::kMin;
    all.push_back(other);
  }
  Submission barrier;
  barrier.name = "x";
  all.push_back(barrier);
  for (const Submission& a : all)
    for (const Submission& b : all)
      EXPECT_EQ(is_signature_of(signature_of(a), b), signature_of(a) == signature_of(b));
}

}  // namespace
}  // namespace farandole

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
  InternedSignatures::Entry& first_entry = *interned.acquire(allreduce_of(3));
  EXPECT_EQ(first_entry.interned.signature, signature_of(allreduce_of(3)));
  EXPECT_EQ(first_entry.interned.digest, digest_of(first_entry.interned.signature));
  InternedSignatures::release(first_entry);
  EXPECT_EQ(interned.acquire(allreduce_of(3)), &first_entry);
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
  InternedSignatures::Entry* const first_entry = interned.acquire(allreduce_of(1));
  EXPECT_EQ(interned.acquire(allreduce_of(2)), nullptr);
  EXPECT_EQ(first_entry->interned.signature, signature_of(allreduce_of(1)));
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
  Submission invalid_call = call;
  invalid_call.call_error = "no";
  InternedSignatures::release(*interned.acquire(invalid_call));
  InternedSignatures::Entry& valid_entry = *interned.acquire(call);
  EXPECT_EQ(valid_entry.interned.signature, signature_of(call));
  InternedSignatures::release(valid_entry);
  invalid_call.shape = {};
  invalid_call.call_error = std::string(2 * kCallErrorBytesMax, 'n');
  EXPECT_EQ(interned.acquire(invalid_call)->interned.problem, "");
}

// Compares submissions that differ in one or several fields. Some of these fields are not part of
// the signature.
TEST(InternedSignatures, IsSignatureOfIsTrueForEqualSignaturesOnly) {
  Submission submission = allreduce_of(3);
  std::vector<Submission> submissions(10, submission);
  submissions[1].name = "y";
  submissions[2].operation = Operation::kBroadcast;
  submissions[3].operation = Operation::kAllgather;
  submissions[4].dtype = DType::kInt32;
  submissions[5].shape = {3, 2, 1};
  submissions[6].shape = {4, 2};
  submissions[7].reduce_op = ReduceOp::kMax;
  submissions[8].prescale = 2;
  submissions[9].postscale = -1;
  for (const Operation operation : {Operation::kBroadcast, Operation::kAllgather}) {
    Submission other_submission = submission;
    other_submission.operation = operation;
    other_submission.root_rank = 1;
    submissions.push_back(other_submission);
    other_submission.shape = {5, 2};
    submissions.push_back(other_submission);
    other_submission.reduce_op = ReduceOp::kMin;
    submissions.push_back(other_submission);
  }
  Submission barrier;
  barrier.name = "x";
  submissions.push_back(barrier);
  for (const Submission& a : submissions)
    for (const Submission& b : submissions)
      EXPECT_EQ(is_signature_of(signature_of(a), b), signature_of(a) == signature_of(b));
}

}  // namespace
}  // namespace farandole

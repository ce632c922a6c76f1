#include "submission/known_signatures.h"

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

TEST(KnownSignatures, ACallThatRepeatsFindsItsSignatureWhereItWas) {
  KnownSignatures known(8);
  KnownSignatures::Entry& first = *known.take(allreduce_of(3));
  EXPECT_EQ(first.known.signature, signature_of(allreduce_of(3)));
  EXPECT_EQ(first.known.digest, digest_of(first.known.signature));
  KnownSignatures::give_back(first);
  EXPECT_EQ(known.take(allreduce_of(3)), &first);
}

TEST(KnownSignatures, ACallThatHasChangedGetsWhatItIsNow) {
  KnownSignatures known(8);
  KnownSignatures::give_back(*known.take(allreduce_of(3)));
  const KnownSignatures::Entry& changed = *known.take(allreduce_of(4));
  EXPECT_EQ(changed.known.signature, signature_of(allreduce_of(4)));
  EXPECT_EQ(changed.known.digest, digest_of(changed.known.signature));
  EXPECT_EQ(known.size(), 1U);
}

TEST(KnownSignatures, WhatIsInUseStaysWhenThereAreTooMany) {
  KnownSignatures known(2);
  KnownSignatures::Entry& a = *known.take(allreduce_of(1, "a"));
  KnownSignatures::give_back(*known.take(allreduce_of(1, "b")));
  (void)known.take(allreduce_of(1, "c"));
  EXPECT_EQ(known.size(), 2U);
  EXPECT_EQ(a.known.signature.name, "a");
}

TEST(KnownSignatures, ANameIsInUseOnce) {
  KnownSignatures known(2);
  KnownSignatures::Entry* const first = known.take(allreduce_of(1));
  EXPECT_EQ(known.take(allreduce_of(2)), nullptr);
  EXPECT_EQ(first->known.signature, signature_of(allreduce_of(1)));
}

TEST(KnownSignatures, ANameThatIsGivenUpIsInUseWithoutAnEntry) {
  KnownSignatures known(2);
  known.give_up(*known.take(allreduce_of(1, "a")));
  EXPECT_EQ(known.size(), 0U);
  EXPECT_EQ(known.take(allreduce_of(2, "a")), nullptr);
  KnownSignatures::Entry& b = *known.take(allreduce_of(1, "b"));
  known.forget(b);
  EXPECT_EQ(known.size(), 0U);
  EXPECT_NE(known.take(allreduce_of(1, "b")), nullptr);
}

TEST(KnownSignatures, AFaultIsNeverTakenForWhatCanRun) {
  KnownSignatures known(8);
  Submission call = allreduce_of(3);
  Submission wrong = call;
  wrong.fault = "no";
  KnownSignatures::give_back(*known.take(wrong));
  KnownSignatures::Entry& right = *known.take(call);
  EXPECT_EQ(right.known.signature, signature_of(call));
  KnownSignatures::give_back(right);
  wrong.shape = {};
  wrong.fault = std::string(2 * kFaultBytesMax, 'n');
  EXPECT_EQ(known.take(wrong)->known.problem, "");
}

// Every field that a signature has, and some that it has not.
TEST(KnownSignatures, ASignatureDescribesWhatItWasMadeOf) {
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
      EXPECT_EQ(describes(signature_of(a), b), signature_of(a) == signature_of(b));
}

}  // namespace
}  // namespace farandole

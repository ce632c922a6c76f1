#include "coordination/fusion_planner.h"

namespace farandole {

bool may_share_a_step(const Signature& a, const Signature& b) {
  return row_of(a.operation).fusible && a.operation == b.operation && a.dtype == b.dtype &&
         a.reduce_op == b.reduce_op && same_bits(a.prescale, b.prescale) &&
         same_bits(a.postscale, b.postscale);
}

}  // namespace farandole

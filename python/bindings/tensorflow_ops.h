// The glue for TensorFlow: operations of a TensorFlow program that call the engine.
// farandole/tensorflow/ops.py puts these operations into programs.
#pragma once

// Registers the operations with the TensorFlow that this process has loaded; a second call does
// nothing. tensorflow_loader.cc calls this function while tf.load_op_library() loads the library of
// that file. If the registration fails, tf.load_op_library() raises the error.
//
// FarandoleAllreduce, FarandoleBroadcast, FarandoleReducescatter: `tensors` → `results`.
// FarandoleAllgather: `tensors` → `results`, and `received_rows`, one int64 vector for each tensor.
// FarandoleAlltoall: also takes `splits`, an int64 vector for each tensor; an empty one means equal
// parts.
//
// The tensors of one operation are one batch of the engine. Their dtypes and shapes may differ. The
// attributes are the fields of a Submission: `names` (one for each tensor; an empty name means that
// the engine chooses one), `group`, `reduce_op`, `root_rank`, and `prescale` and `postscale`, as
// the bits of a float64. `job` says in which jobs the operation may run: see Kernel. `wait_ms` is
// how long the thread of the operation makes progress itself. Then the thread returns, and the
// completions of the calls finish the operation (docs/decisions/0068).
//
// FarandoleQuery: → `answer`, an int32. It is the number that `what` names (see kQueries), for
// `group`.
//
// The kernels are asynchronous: after `wait_ms`, they hold no thread while a call runs. A failed
// call ends its operation with the error FAILED_PRECONDITION if the call is wrong, otherwise with
// ABORTED. The text begins with the name of the class of the error, as in farandole/errors.py.
extern "C" __attribute__((visibility("default"))) void farandole_register_tensorflow_ops();

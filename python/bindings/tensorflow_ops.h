// The glue for TensorFlow: operations of a TensorFlow program that call the engine.
// farandole/tensorflow/ops.py puts these operations into programs.
#pragma once

// Registers the operations with the TensorFlow that this process has loaded; a second call does
// nothing. tensorflow_loader.cc calls this function while tf.load_op_library() loads the library of
// that file. If the registration fails, tf.load_op_library() raises the error.
//
// All operations except FarandoleQuery have the input `tensors` and the output `results`.
// FarandoleAllgather and FarandoleAlltoall also have the output `received_rows`, with one int64
// vector for each tensor. FarandoleAlltoall also has the input `splits`, with one int64 vector for
// each tensor; an empty vector means equal parts.
//
// Each tensor of an operation is one call of the engine, and the calls of one operation are one
// batch. The dtypes and shapes of the tensors may differ. The attributes are the fields of a
// Submission: `names` (one for each tensor; an empty name means that the engine chooses one),
// `group`, `reduce_op`, `root_rank`, and `prescale` and `postscale`, as the bits of a float64.
// `job` says in which jobs the operation may run: see Kernel in tensorflow_ops.cc. `wait_ms` is how
// long the thread of the operation makes progress itself. Then the thread returns, and the
// completions of the calls finish the operation (docs/decisions/0068).
//
// FarandoleQuery has no input, and the output `answer`, an int32. The attribute `what` names the
// number that the operation returns (see kQueries) for the group in the attribute `group`.
//
// The kernels are asynchronous: after `wait_ms`, they hold no thread while a call runs. A failed
// call ends its operation with the error FAILED_PRECONDITION if the call is wrong, otherwise with
// ABORTED. The text of the error begins with the name of its exception class in
// farandole/errors.py.
extern "C" __attribute__((visibility("default"))) void farandole_register_tensorflow_ops();

// These two macros return the Status of a failed expression from a function that returns Status or
// Result<T>:
//   FARANDOLE_TRY(socket.send(message));  FARANDOLE_TRY_ASSIGN(auto fd, open_it());
#pragma once

#include "farandole/status.h"

#define FARANDOLE_TRY(expression)                                                           \
  do {                                                                                      \
    if (::farandole::Status try_status = (expression); !try_status.ok()) return try_status; \
  } while (false)

#define FARANDOLE_TRY_JOIN_NOW(a, b) a##b
#define FARANDOLE_TRY_JOIN(a, b) FARANDOLE_TRY_JOIN_NOW(a, b)
#define FARANDOLE_TRY_ASSIGN(target, expression)                 \
  auto FARANDOLE_TRY_JOIN(try_result_, __LINE__) = (expression); \
  if (!FARANDOLE_TRY_JOIN(try_result_, __LINE__).ok())           \
    return FARANDOLE_TRY_JOIN(try_result_, __LINE__).status();   \
  target = std::move(FARANDOLE_TRY_JOIN(try_result_, __LINE__)).value()

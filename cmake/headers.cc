// room.cmake compiles this file for the precompiled headers of the rooms and of the tests.

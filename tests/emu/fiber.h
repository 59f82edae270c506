// A fiber: a call on a stack of its own, which can be left in the middle and gone back to.
#pragma once
#include <cstddef>

#if !defined(__x86_64__) && !defined(EMU_UCONTEXT)
#define EMU_UCONTEXT
#endif
#if defined(EMU_UCONTEXT)
#include <ucontext.h>
#endif

namespace emu {

class Fiber {
 public:
  Fiber() = default;
  Fiber(const Fiber&) = delete;

  // entry(argument) begins at the first resume and must never return: it yields for good. It may be
  // resumed by one OS thread now and by another later, so it must hold no thread-local address.
  void start(void* stack, size_t bytes, void (*entry)(void*), void* argument);
  void resume();  // runs the fiber until it yields
  void yield();   // called in the fiber: back to whoever resumed it

 private:
  static void run(Fiber* fiber);
#if defined(EMU_UCONTEXT)
  static void run_halves(unsigned low, unsigned high);
  ucontext_t own_, caller_;
#else
  void *own_ = nullptr, *caller_ = nullptr;  // stack pointers, below the saved registers
#endif
  void (*entry_)(void*) = nullptr;
  void* argument_ = nullptr;
  // What ASan must know of both stacks.
  void* stack_ = nullptr;
  size_t stack_bytes_ = 0;
  const void* caller_stack_ = nullptr;
  size_t caller_stack_bytes_ = 0;
};

}  // namespace emu

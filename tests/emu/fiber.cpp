#include "fiber.h"

#include <cstdint>
#include <cstdlib>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#define EMU_LEAVE(fake, stack, bytes) __sanitizer_start_switch_fiber(fake, stack, bytes)
#define EMU_ENTER(fake, stack, bytes) __sanitizer_finish_switch_fiber(fake, stack, bytes)
#else
#define EMU_LEAVE(fake, stack, bytes) (void)(fake)
#define EMU_ENTER(fake, stack, bytes) (void)(fake)
#endif

#if !defined(EMU_UCONTEXT)
// Pushes what a callee must save, stores the stack pointer in *from and goes on at `to`, which this
// function or Fiber::start left; by a jump, as a return would be mispredicted. The control words of
// SSE and x87 are not saved: no kernel changes them. A new fiber begins with itself in rbx and its
// function in r12.
extern "C" void emu_switch(void** from, void* to);
extern "C" void emu_begin();
asm(R"(
.text
.globl emu_switch
.hidden emu_switch
.type emu_switch, @function
emu_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  popq %rcx
  jmpq *%rcx
.size emu_switch, .-emu_switch
.globl emu_begin
.hidden emu_begin
.type emu_begin, @function
emu_begin:
  movq %rbx, %rdi
  callq *%r12
  ud2
.size emu_begin, .-emu_begin
)");
#endif

namespace emu {

void Fiber::start(void* stack, size_t bytes, void (*entry)(void*), void* argument) {
  stack_ = stack, stack_bytes_ = bytes, entry_ = entry, argument_ = argument;
#if defined(EMU_UCONTEXT)
  getcontext(&own_);
  own_.uc_stack.ss_sp = stack, own_.uc_stack.ss_size = bytes, own_.uc_link = nullptr;
  uintptr_t self = (uintptr_t)this;
  makecontext(&own_, (void (*)())run_halves, 2, (unsigned)self, (unsigned)(self >> 32));
#else
  // The seven words that emu_switch pops; rbp is 0, so that a backtrace ends there.
  void** top = (void**)(((uintptr_t)stack + bytes) & ~(uintptr_t)15) - 7;
  for (int i = 0; i < 7; i++) top[i] = nullptr;
  top[3] = (void*)run, top[4] = this, top[6] = (void*)emu_begin;
  own_ = top;
#endif
}

void Fiber::run(Fiber* fiber) {
  EMU_ENTER(nullptr, &fiber->caller_stack_, &fiber->caller_stack_bytes_);
  fiber->entry_(fiber->argument_);
  abort();
}

#if defined(EMU_UCONTEXT)
void Fiber::run_halves(unsigned low, unsigned high) { run((Fiber*)((uintptr_t)high << 32 | low)); }
#endif

void Fiber::resume() {
  void* fake = nullptr;
  EMU_LEAVE(&fake, stack_, stack_bytes_);
#if defined(EMU_UCONTEXT)
  swapcontext(&caller_, &own_);
#else
  emu_switch(&caller_, own_);
#endif
  EMU_ENTER(fake, nullptr, nullptr);
}

void Fiber::yield() {
  void* fake = nullptr;
  EMU_LEAVE(&fake, caller_stack_, caller_stack_bytes_);
#if defined(EMU_UCONTEXT)
  swapcontext(&own_, &caller_);
#else
  emu_switch(&own_, caller_);
#endif
  EMU_ENTER(fake, &caller_stack_, &caller_stack_bytes_);
}

}  // namespace emu

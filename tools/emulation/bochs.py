#!/usr/bin/env python3
"""Run a test binary on the CPU core of Bochs: AVX-512, VNNI, VBMI, AVX-VNNI on a processor without them.

    bochs.py PROGRAM [ARGUMENTS...]

PROGRAM is a static ELF file at fixed addresses. Bochs computes its instructions; this script loads it and serves the few
system calls that a test harness makes. Threads run one after another: a child runs to its end before its parent goes on, so
nothing may wait for a second thread (`KIMI_TEST_THREADS=1`). Variables that begin with KIMI_, PROPTEST_ or RUST_ are passed on.
`run` beside this file sets everything up.
"""
import ctypes
import errno
import mmap
import os
import struct
import sys
import time

import bochscpu
import bochscpu.cpu
import bochscpu.memory

PAGE = 4096
TRAP = 0x1000  # system calls end up here, on a HLT
BREAK, BREAK_BYTES = 0x2000_0000, 8 << 20
HEAP, HEAP_BYTES = 0x4000_0000, 768 << 20
STACK_TOP, STACK_BYTES = 0x7FFF_0000, 4 << 20
XCR0 = 0xE7  # x87, SSE, AVX and the three states of AVX-512
RANDOM_FD = 77
CLONE_PARENT_SETTID, CLONE_CHILD_CLEARTID = 0x10_0000, 0x20_0000


class Machine:
    def __init__(self, path, arguments):
        self.tables = bochscpu.memory.PageMapLevel4Table()
        # Frames begin behind the page tables, which are laid out from 0x1000 on.
        self.next_frame, self.pages, self.buffers = 0x1000_0000, {}, []
        self.brk, self.heap = BREAK, HEAP
        self.exit_code, self.parents, self.last_thread = None, [], 5000
        entry, auxiliary = self.load(open(path, "rb").read())
        self.map(TRAP, PAGE)
        self.write(TRAP, b"\xf4" * 16)
        # All memory there will be: the page tables are handed over once.
        self.map(BREAK, BREAK_BYTES)
        self.map(HEAP, HEAP_BYTES)
        self.map(STACK_TOP - STACK_BYTES, STACK_BYTES)
        stack = self.build_stack([path, *arguments], auxiliary)
        for pair in self.tables.commit(0x1000):
            bochscpu.memory.page_insert(min(pair), max(pair))
        self.session = bochscpu.Session()
        self.session.missing_page_handler = lambda address: self.die(f"no page at {address:#x}")
        self.session.cpu.state = initial_state(entry, stack)
        self.hook = bochscpu.Hook()
        self.hook.hlt = lambda *_: self.session.stop()
        self.hook.exception = lambda _context, _cpu, vector, code=0: self.die(f"exception {vector}, code {code}")

    def die(self, why):
        state = self.session.cpu.state
        print(f"bochs.py: {why} at rip {state.rip:#x}, rsp {state.rsp:#x}, cr2 {state.cr2:#x}", file=sys.stderr, flush=True)
        os._exit(3)

    # ------------------------------------------------------------------ memory
    def map(self, address, size):
        first, end = address & ~(PAGE - 1), (address + size + PAGE - 1) & ~(PAGE - 1)
        missing = [page for page in range(first, end, PAGE) if page not in self.pages]
        if not missing:
            return
        buffer = mmap.mmap(-1, len(missing) * PAGE)
        base = ctypes.addressof(ctypes.c_char.from_buffer(buffer))
        self.buffers.append(buffer)
        for number, page in enumerate(missing):
            self.pages[page] = base + number * PAGE
            self.tables.insert(page, self.next_frame, 7)
            bochscpu.memory.page_insert(self.next_frame, base + number * PAGE)
            self.next_frame += PAGE

    def pieces(self, address, size):
        while size:
            page = address & ~(PAGE - 1)
            count = min(size, page + PAGE - address)
            yield self.pages[page] + address - page, count
            address, size = address + count, size - count

    def write(self, address, data):
        at = 0
        for place, count in self.pieces(address, len(data)):
            ctypes.memmove(place, bytes(data[at:at + count]), count)
            at += count

    def read(self, address, size):
        return b"".join(ctypes.string_at(place, count) for place, count in self.pieces(address, size))

    # ------------------------------------------------------------------ loading
    def load(self, elf):
        (kind,) = struct.unpack_from("<H", elf, 16)
        if elf[:4] != b"\x7fELF" or kind != 2:
            sys.exit("bochs.py: the program must be a static ELF file at fixed addresses")
        entry, headers = struct.unpack_from("<QQ", elf, 24)
        size, count = struct.unpack_from("<HH", elf, 54)
        headers_address = 0
        for number in range(count):
            kind, _, offset, address, _, in_file, in_memory, _ = struct.unpack_from("<IIQQQQQQ", elf, headers + number * size)
            if kind == 1:
                self.map(address, in_memory)
                self.write(address, elf[offset:offset + in_file])
                if offset <= headers < offset + in_file:
                    headers_address = address + headers - offset
        return entry, [(3, headers_address), (4, size), (5, count), (6, PAGE), (7, 0), (9, entry)]

    def build_stack(self, arguments, auxiliary):
        stack = STACK_TOP - PAGE

        def push(data):
            nonlocal stack
            stack -= len(data)
            self.write(stack, data)
            return stack

        argv = [push(argument.encode() + b"\0") for argument in arguments]
        passed = [f"{k}={v}" for k, v in os.environ.items() if k.startswith(("KIMI_", "PROPTEST_", "RUST_"))]
        environment = [push(variable.encode() + b"\0") for variable in passed]
        random = push(bytes(range(16)))
        hardware = 0x178B_FBFF
        auxiliary = auxiliary + [(11, 0), (12, 0), (13, 0), (14, 0), (16, hardware), (17, 100), (23, 0), (25, random), (31, argv[0]), (51, 11008), (0, 0)]
        words = [len(argv), *argv, 0, *environment, 0, *(word for pair in auxiliary for word in pair)]
        stack = (stack - 8 * len(words)) & ~63
        self.write(stack, struct.pack(f"<{len(words)}Q", *words))
        return stack

    # ------------------------------------------------------------------ system calls
    def call(self, state):
        number, a, b, c = state.rax, state.rdi, state.rsi, state.rdx
        if number == 0 and a == RANDOM_FD:  # read
            self.write(b, bytes(i * 37 % 251 for i in range(c)))
            return c
        if number == 1:  # write
            os.write(a if a in (1, 2) else 2, self.read(b, c))
            return c
        if number == 20:  # writev
            parts = [struct.unpack("<QQ", self.read(b + 16 * i, 16)) for i in range(c)]
            return sum(os.write(a if a in (1, 2) else 2, self.read(*part)) for part in parts if part[1])
        if number == 9:  # mmap
            size = (b + PAGE - 1) & ~(PAGE - 1)
            if self.heap + size > HEAP + HEAP_BYTES:
                return -errno.ENOMEM
            address, self.heap = self.heap, self.heap + size
            return address
        if number == 12:  # brk
            if BREAK <= a <= BREAK + BREAK_BYTES:
                self.brk = a
            return self.brk
        if number == 158:  # arch_prctl
            if a == 0x1002:
                segment = state.fs
                segment.base = b
                state.fs = segment
                return 0
            return 0 if a == 0x1023 else -errno.EINVAL
        if number == 204:  # sched_getaffinity: one processor
            self.write(c, b"\x01" + b"\0" * 7)
            return 8
        if number == 228:  # clock_gettime
            now = time.time_ns()
            self.write(b, struct.pack("<qq", now // 10**9, now % 10**9))
            return 0
        if number == 257:  # openat
            name = self.read(b, 13).split(b"\0")[0]
            return RANDOM_FD if name in (b"/dev/random", b"/dev/urandom") else -errno.ENOENT
        if number == 302:  # prlimit64
            if state.r10:
                self.write(state.r10, struct.pack("<QQ", STACK_BYTES, STACK_BYTES))
            return 0
        if number == 318:  # getrandom
            self.write(a, bytes(i * 37 % 251 for i in range(b)))
            return b
        if number == 7:  # poll: whoever asks for random bytes may have them
            return b
        if number in (39, 186, 218):  # getpid, gettid, set_tid_address
            return 4242
        if number in (60, 231):  # exit, exit_group
            self.exit_code = a
            return 0
        # close, mprotect, munmap, rt_sigaction, rt_sigprocmask, sched_yield, madvise, nanosleep, sigaltstack, futex, ...
        return 0 if number in (3, 10, 11, 13, 14, 24, 28, 35, 131, 157, 202, 273) else -errno.ENOSYS

    def resume(self, state, result):
        state.rax, state.rip, state.rflags = result & (2**64 - 1), state.rcx, state.r11
        self.session.cpu.state = state

    def clone(self, parent):
        self.last_thread += 1
        flags, thread = parent.rdi, self.last_thread
        if flags & CLONE_PARENT_SETTID:
            self.write(parent.rdx, struct.pack("<I", thread))
        self.parents.append((parent, thread, parent.r10 if flags & CLONE_CHILD_CLEARTID else 0))
        child = self.session.cpu.state
        child.rsp, segment = parent.rsi, child.fs
        segment.base = parent.r8
        child.fs = segment
        self.resume(child, 0)

    def run(self):
        while self.exit_code is None:
            self.session.run([self.hook])
            state = self.session.cpu.state
            if state.rip not in (TRAP, TRAP + 1):
                self.die("stopped")
            if state.rax == 56:
                self.clone(state)
            elif state.rax == 60 and self.parents:
                parent, thread, cleared = self.parents.pop()
                if cleared:
                    self.write(cleared, struct.pack("<I", 0))
                self.resume(parent, thread)
            else:
                self.resume(state, self.call(state))
        return self.exit_code


def initial_state(entry, stack):
    state = bochscpu.State()
    bochscpu.cpu.set_long_mode(state)
    state.cr0, state.cr3 = 0x8004_0033, 0x1000
    state.cr4 = 1 << 5 | 1 << 7 | 1 << 9 | 1 << 10 | 1 << 16 | 1 << 18  # PAE, PGE, SSE, SSE exceptions, FSGSBASE, XSAVE
    state.efer, state.xcr0 = 0x1 | 0x100 | 0x400 | 0x800, XCR0
    state.mxcsr, state.mxcsr_mask, state.fpcw, state.fptw = 0x1F80, 0xFFFF, 0x37F, 0xFFFF

    def segment(selector, attributes):
        value = bochscpu.Segment()
        value.selector, value.base, value.limit, value.attr, value.present = selector, 0, 0xFFFF_FFFF, attributes, True
        return value

    state.cs = segment(8, 0xA09B)
    for name in ("ss", "ds", "es", "fs", "gs"):
        setattr(state, name, segment(0x10, 0xC093))
    state.lstar, state.star, state.sfmask = TRAP, 8 << 32, 0
    state.rip, state.rsp, state.rflags, state.rdx = entry, stack, 2, 0
    return state


if __name__ == "__main__":
    code = Machine(sys.argv[1], sys.argv[2:]).run()
    sys.stdout.flush()
    os._exit(code)

// gvisor-sentry-prewarmer: runs ahead of gVisor's sentry, in the same process.
//
//     gvisor-sentry-prewarmer BINARY ARGV0 [ARG...]
//
// The sentry moves its standard streams to descriptors 253 to 255. When it does so it has threads, and in a process
// with threads the kernel grows a descriptor table only after an RCU grace period, which takes 5 to 17 ms. This
// process has one thread: it grows the table to 256 entries at once, and the table outlives the exec.
//
// No libc, so that it starts in a fraction of a millisecond and needs only the compiler.

#if defined(__x86_64__)
enum { SYS_close = 3, SYS_fcntl = 72, SYS_execve = 59, SYS_exit = 60, SYS_openat = 257 };
static long call(long n, long a, long b, long c, long d) {
	long r;
	register long r10 __asm__("r10") = d;
	__asm__ volatile("syscall" : "=a"(r) : "a"(n), "D"(a), "S"(b), "d"(c), "r"(r10) : "rcx", "r11", "memory");
	return r;
}
__asm__(".globl _start\n_start: xor %ebp,%ebp; mov %rsp,%rdi; and $-16,%rsp; call run\n");
#elif defined(__aarch64__)
enum { SYS_close = 57, SYS_fcntl = 25, SYS_execve = 221, SYS_exit = 93, SYS_openat = 56 };
static long call(long n, long a, long b, long c, long d) {
	register long x8 __asm__("x8") = n, x0 __asm__("x0") = a, x1 __asm__("x1") = b, x2 __asm__("x2") = c, x3 __asm__("x3") = d;
	__asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3) : "memory");
	return x0;
}
__asm__(".globl _start\n_start: mov x29,#0; mov x0,sp; bl run\n");
#else
#error "no system calls are known for this machine"
#endif

enum { AT_FDCWD = -100, O_PATH_CLOEXEC = 010000000 | 02000000, F_DUPFD_CLOEXEC = 1030, LAST = 255 };

__attribute__((used, noreturn)) void run(long *stack) {
	long argc = stack[0];
	char **argv = (char **)(stack + 1), **env = argv + argc + 1;
	long fd = call(SYS_openat, AT_FDCWD, (long)"/", O_PATH_CLOEXEC, 0);
	if (fd >= 0) {
		long last = call(SYS_fcntl, fd, F_DUPFD_CLOEXEC, LAST, 0);
		if (last >= 0)
			call(SYS_close, last, 0, 0, 0);
		call(SYS_close, fd, 0, 0, 0);
	}
	// Without room in the table the sentry grows it itself: slower, but it runs.
	if (argc > 2)
		call(SYS_execve, (long)argv[1], (long)(argv + 2), (long)env, 0);
	for (;;)
		call(SYS_exit, 127, 0, 0, 0);
}

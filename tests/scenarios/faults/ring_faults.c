/*
 * Faults of an SSD, preloaded into a node: nothing in the node knows of them.
 *
 * The io-uring crate enters the kernel through libc's `syscall` and maps its rings through `mmap`, so both are
 * interposed. A ring that registers buffers is an SSD ring. Before it enters, submissions may be
 * cut short, so that the kernel really moves less; after, completions may be turned into EIO, and then what
 * a read put into the arena is overwritten, so that a node that shows it shows wrong bytes.
 *
 * RING_FAULTS names a file with four numbers, read at each entry: every how manieth read fails, write
 * fails, transfer is cut short (0: none), and how many microseconds an entry takes longer. What was done is written
 * beside it, in FILE.done: reads failed, writes failed, transfers cut.
 *
 * RING_DENIED: the kernel refuses io_uring to this process, as a container's seccomp profile does.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/io_uring.h>
#include <linux/seccomp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define RINGS_MAX 32
#define OPERATIONS_MAX 65536
#define PAGE 4096u

struct operation {
    uint8_t opcode;
    uint32_t bytes;
    void *address;
};

struct ring {
    int fd;
    int is_ssd;
    struct io_uring_params params;
    char *rings;
    struct io_uring_sqe *entries;
    unsigned submissions_seen;
    unsigned completions_seen;
    struct operation *operations;
};

static struct ring rings[RINGS_MAX];
static int rings_made;
static unsigned reads, writes, transfers;
static unsigned reads_failed, writes_failed, transfers_cut;

static struct ring *ring_of(int fd)
{
    /* The newest first: descriptor numbers are used again. */
    for (int index = __atomic_load_n(&rings_made, __ATOMIC_ACQUIRE) - 1; index >= 0; index--)
        if (rings[index].fd == fd)
            return &rings[index];
    return NULL;
}

static unsigned *word(struct ring *ring, unsigned offset)
{
    return (unsigned *)(ring->rings + offset);
}

static struct operation *operation_of(struct ring *ring, uint64_t user_data)
{
    return &ring->operations[((user_data >> 32) * 64 + (user_data & 63)) % OPERATIONS_MAX];
}

struct faults {
    unsigned read_every, write_every, short_every, slow_us;
};

static struct faults faults_now(const char *path)
{
    struct faults faults = {0, 0, 0, 0};
    char text[128] = {0};
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return faults;
    if (read(file, text, sizeof text - 1) > 0)
        sscanf(text, "%u %u %u %u", &faults.read_every, &faults.write_every, &faults.short_every, &faults.slow_us);
    close(file);
    return faults;
}

static void say_done(const char *path)
{
    char name[4096], text[128];
    snprintf(name, sizeof name, "%s.done", path);
    int file = open(name, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0)
        return;
    int bytes = snprintf(text, sizeof text, "%u %u %u\n", reads_failed, writes_failed, transfers_cut);
    if (pwrite(file, text, bytes, 0) < 0)
        abort();
    close(file);
}

static void before(struct ring *ring, struct faults *faults)
{
    unsigned tail = __atomic_load_n(word(ring, ring->params.sq_off.tail), __ATOMIC_ACQUIRE);
    unsigned mask = *word(ring, ring->params.sq_off.ring_mask);
    for (; ring->submissions_seen != tail; ring->submissions_seen++) {
        unsigned *array = word(ring, ring->params.sq_off.array);
        struct io_uring_sqe *entry = &ring->entries[array[ring->submissions_seen & mask]];
        if (faults->short_every && entry->len >= 2 * PAGE && ++transfers % faults->short_every == 0) {
            entry->len = entry->len / 2 / PAGE * PAGE;
            transfers_cut++;
        }
        struct operation *operation = operation_of(ring, entry->user_data);
        operation->opcode = entry->opcode;
        operation->bytes = entry->len;
        operation->address = (void *)(uintptr_t)entry->addr;
    }
}

static void after(struct ring *ring, struct faults *faults)
{
    unsigned tail = __atomic_load_n(word(ring, ring->params.cq_off.tail), __ATOMIC_ACQUIRE);
    unsigned mask = *word(ring, ring->params.cq_off.ring_mask);
    struct io_uring_cqe *completions = (struct io_uring_cqe *)(ring->rings + ring->params.cq_off.cqes);
    for (; ring->completions_seen != tail; ring->completions_seen++) {
        struct io_uring_cqe *completion = &completions[ring->completions_seen & mask];
        struct operation *operation = operation_of(ring, completion->user_data);
        if (operation->opcode == IORING_OP_READ_FIXED) {
            if (faults->read_every && ++reads % faults->read_every == 0) {
                completion->res = -EIO;
                memset(operation->address, 0xa5, operation->bytes);
                reads_failed++;
            }
        } else if (faults->write_every && ++writes % faults->write_every == 0) {
            completion->res = -EIO;
            writes_failed++;
        }
    }
}

static long real_syscall(long number, const long *a)
{
    static long (*real)(long, ...);
    if (!real)
        real = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
    return real(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

static long enter(struct ring *ring, const long *a)
{
    const char *path = getenv("RING_FAULTS");
    if (!path)
        return real_syscall(SYS_io_uring_enter, a);
    struct faults faults = faults_now(path);
    unsigned done = reads_failed + writes_failed + transfers_cut;
    before(ring, &faults);
    if (faults.slow_us)
        usleep(faults.slow_us);
    long result = real_syscall(SYS_io_uring_enter, a);
    int error = errno;
    after(ring, &faults);
    if (reads_failed + writes_failed + transfers_cut != done)
        say_done(path);
    errno = error;
    return result;
}

long syscall(long number, ...)
{
    long a[6];
    va_list arguments;
    va_start(arguments, number);
    for (int index = 0; index < 6; index++)
        a[index] = va_arg(arguments, long);
    va_end(arguments);
    struct ring *ring;
    long result;
    switch (number) {
    case SYS_io_uring_setup:
        result = real_syscall(number, a);
        if (result >= 0) {
            int index = __atomic_load_n(&rings_made, __ATOMIC_RELAXED);
            if (index == RINGS_MAX)
                abort();
            memset(&rings[index], 0, sizeof rings[index]);
            rings[index].fd = result;
            memcpy(&rings[index].params, (void *)a[1], sizeof rings[index].params);
            __atomic_store_n(&rings_made, index + 1, __ATOMIC_RELEASE);
        }
        return result;
    case SYS_io_uring_register:
        if (a[1] == IORING_REGISTER_BUFFERS && (ring = ring_of(a[0])) && !ring->is_ssd) {
            ring->operations = calloc(OPERATIONS_MAX, sizeof *ring->operations);
            ring->is_ssd = ring->rings && ring->entries && ring->operations;
            if (!ring->is_ssd)
                abort();
        }
        return real_syscall(number, a);
    case SYS_io_uring_enter:
        if ((ring = ring_of(a[0])) && ring->is_ssd)
            return enter(ring, a);
        return real_syscall(number, a);
    default:
        return real_syscall(number, a);
    }
}

static void *map(const char *name, void *at, size_t bytes, int protection, int flags, int fd, off_t offset)
{
    void *(*real)(void *, size_t, int, int, int, off_t);
    real = (void *(*)(void *, size_t, int, int, int, off_t))dlsym(RTLD_NEXT, name);
    void *mapped = real(at, bytes, protection, flags, fd, offset);
    struct ring *ring = fd >= 0 ? ring_of(fd) : NULL;
    if (ring && mapped != MAP_FAILED) {
        /* Both rings lie in one mapping on every kernel that runs a node. */
        if (offset == IORING_OFF_SQ_RING && !ring->rings)
            ring->rings = mapped;
        if ((uint64_t)offset == IORING_OFF_SQES && !ring->entries)
            ring->entries = mapped;
    }
    return mapped;
}

void *mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset)
{
    return map("mmap", at, bytes, protection, flags, fd, offset);
}

void *mmap64(void *at, size_t bytes, int protection, int flags, int fd, off_t offset)
{
    return map("mmap64", at, bytes, protection, flags, fd, offset);
}

__attribute__((constructor)) static void deny(void)
{
    if (!getenv("RING_DENIED"))
        return;
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program))
        abort();
}

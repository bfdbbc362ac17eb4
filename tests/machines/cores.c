/* Makes programs see FAKE_CPUS cores, by every way in which the C library is asked. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int cores(void) { return atoi(getenv("FAKE_CPUS")); }

int get_nprocs(void) { return cores(); }

int get_nprocs_conf(void) { return cores(); }

long sysconf(int name) {
  static long (*real)(int);
  if (!real) real = dlsym(RTLD_NEXT, "sysconf");
  return name == _SC_NPROCESSORS_ONLN || name == _SC_NPROCESSORS_CONF ? cores() : real(name);
}

int sched_getaffinity(pid_t pid, size_t size, cpu_set_t *set) {
  (void)pid;
  memset(set, 0, size);
  for (int core = 0; core < cores() && core < (int)size * 8; core++) CPU_SET_S(core, size, set);
  return 0;
}

"""The numbers of Linux's syscalls, for those that a confined process may ever make.

Each is ``name:x86_64:aarch64``; ``-`` where that machine has none. Numbers never change once they
are given out. What is not listed here is denied to all.
"""

from __future__ import annotations

import platform
from types import MappingProxyType

MACHINES = ("x86_64", "aarch64")
"""Those that the table knows; on any other there is no filter."""

_TABLE = """
read:0:63 write:1:64 readv:19:65 writev:20:66 pread64:17:67 pwrite64:18:68 preadv:295:69
pwritev:296:70 preadv2:327:286 pwritev2:328:287 lseek:8:62 open:2:- creat:85:- openat:257:56
openat2:437:437 close:3:57 close_range:436:436 dup:32:23 dup2:33:- dup3:292:24 fstat:5:80 stat:4:-
lstat:6:- newfstatat:262:79 statx:332:291 access:21:- faccessat:269:48 faccessat2:439:439
readlink:89:- readlinkat:267:78 getdents:78:- getdents64:217:61 getcwd:79:17 chdir:80:49
fchdir:81:50 mkdir:83:- mkdirat:258:34 rmdir:84:- unlink:87:- unlinkat:263:35 rename:82:-
renameat:264:38 renameat2:316:276 link:86:- linkat:265:37 symlink:88:- symlinkat:266:36
truncate:76:45 ftruncate:77:46 fallocate:285:47 fsync:74:82 fdatasync:75:83 sync_file_range:277:84
flock:73:32 fadvise64:221:223 readahead:187:213 statfs:137:43 fstatfs:138:44 umask:95:166
sendfile:40:71 copy_file_range:326:285 pipe:22:- pipe2:293:59 poll:7:- ppoll:271:73 select:23:-
pselect6:270:72 epoll_create:213:- epoll_create1:291:20 epoll_ctl:233:21 epoll_wait:232:-
epoll_pwait:281:22 epoll_pwait2:441:441 eventfd:284:- eventfd2:290:19 signalfd:282:-
signalfd4:289:74 timerfd_create:283:85 timerfd_settime:286:86 timerfd_gettime:287:87
timer_create:222:107 timer_settime:223:110 timer_gettime:224:108 timer_getoverrun:225:109
timer_delete:226:111 nanosleep:35:101 clock_nanosleep:230:115 clock_gettime:228:113
clock_getres:229:114 gettimeofday:96:169 time:201:- alarm:37:- getitimer:36:102 setitimer:38:103
pause:34:- restart_syscall:219:128 mmap:9:222 munmap:11:215 mprotect:10:226 mremap:25:216
madvise:28:233 brk:12:214 msync:26:227 mlock:149:228 mlock2:325:284 munlock:150:229
pkey_alloc:330:289 pkey_free:331:290 pkey_mprotect:329:288 membarrier:324:283 mseal:462:462
map_shadow_stack:453:453 futex:202:98 futex_waitv:449:449 futex_wake:454:454 futex_wait:455:455
futex_requeue:456:456 set_robust_list:273:99 set_tid_address:218:96 rseq:334:293 gettid:186:178
sched_yield:24:124 sched_getaffinity:204:123 sched_getparam:143:121 sched_getscheduler:145:120
sched_get_priority_max:146:125 sched_get_priority_min:147:126 sched_rr_get_interval:148:127
getcpu:309:168 arch_prctl:158:- exit:60:93 exit_group:231:94 rt_sigaction:13:134
rt_sigprocmask:14:135 rt_sigreturn:15:139 rt_sigpending:127:136 rt_sigtimedwait:128:137
rt_sigsuspend:130:133 sigaltstack:131:132 wait4:61:260 waitid:247:95 getpid:39:172 getppid:110:173
getuid:102:174 geteuid:107:175 getgid:104:176 getegid:108:177 getresuid:118:148 getresgid:120:150
getgroups:115:158 getpgid:121:155 getpgrp:111:- getsid:124:156 getpriority:140:141
getrlimit:97:163 setrlimit:160:164 getrusage:98:165 times:100:153 uname:63:160 sysinfo:99:179
getrandom:318:278 capget:125:90 sendmsg:46:211 recvmsg:47:212 recvfrom:45:207 shutdown:48:210
getsockname:51:204 getpeername:52:205 getsockopt:55:209 setsockopt:54:208 fork:57:- vfork:58:-
execve:59:221 execveat:322:281 setsid:112:157 setpgid:109:154 kill:62:129 tkill:200:130
tgkill:234:131 pidfd_open:434:434 pidfd_send_signal:424:424 connect:42:203 bind:49:200
listen:50:201 accept:43:202 accept4:288:242 sendto:44:206 sendmmsg:307:269 recvmmsg:299:243
clone:56:220 clone3:435:435 socket:41:198 socketpair:53:199 fcntl:72:25 ioctl:16:29 prctl:157:167
prlimit64:302:261 sched_setaffinity:203:122 seccomp:317:277
"""


def numbers(machine: str) -> dict[str, int]:
    """Name -> number on ``machine``, one of :data:`MACHINES`."""
    column = MACHINES.index(machine) + 1
    rows = [row.split(":") for row in _TABLE.split()]
    return {row[0]: int(row[column]) for row in rows if row[column] != "-"}


NUMBERS = MappingProxyType(
    numbers(platform.machine()) if platform.machine() in MACHINES else dict[str, int]()
)

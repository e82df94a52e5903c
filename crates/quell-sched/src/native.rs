//! The scheduler as a library, for simulated kernels: the C source that the kernel runs (`bpf/quell.bpf.c`),
//! compiled natively.
//!
//! A simulator implements [`Kernel`], the part of sched_ext that the scheduler calls, and calls the
//! scheduler's operations ([`Native`]) where the kernel's core would. Threads have numbers, in the order in
//! which they are added.
//!
//! Many schedulers may exist at the same time, on one thread or on several. The global variables of the C
//! source belong to the scheduler that was called last on the thread, and are exchanged when another
//! scheduler is called; so the schedulers of a thread should not alternate often.

#![allow(
    unsafe_code,
    reason = "the scheduler is C; each block says why it is sound"
)]

use crate::layout::{
    self, CpuCtx, Group, MAX_CPUS, MAX_SERVERS, MAX_SHARE_SLOTS, Options as RawOptions, ServerCtx,
    ShareSlot, ShareSlotHints,
};
use crate::rate_solver::{Host, RateSolver};
use crate::{
    Options, SchedError, ServerSetting, ServerStats, Stats, ThreadSetting, llcs_of_cpus,
    raw_options,
};
use quell_model::{CpuId, CpuSet, Topology};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;
use std::rc::Rc;

/// The functions of sched_ext that the scheduler calls, with threads and CPUs by number and times in
/// nanoseconds.
///
/// They are called during an operation of [`Native`]; none of them may call an operation.
pub trait Kernel {
    /// CLOCK_MONOTONIC, in ns.
    fn now(&self) -> u64;
    /// The CPU that executes the present code.
    fn this_cpu(&self) -> u32;
    /// The thread that executes the present code; none: an interrupt, or the idle thread.
    fn current(&self) -> Option<u32>;
    /// The CPU that a thread is on, or was on last.
    fn cpu_of(&self, thread: u32) -> u32;
    /// The CPU time of a thread, in ns.
    fn cpu_time(&self, thread: u32) -> u64;
    /// Whether a thread may run on a CPU.
    fn may_use(&self, thread: u32, cpu: u32) -> bool;
    /// Creates a DSQ.
    fn create_dsq(&mut self, dsq: u64);
    /// Inserts a thread that is being enqueued, or for which a CPU is being selected, into a DSQ; with
    /// `vtime`, the lowest goes first. `flags` as the kernel's.
    fn insert(&mut self, thread: u32, dsq: u64, slice: u64, vtime: Option<u64>, flags: u64);
    /// Moves the first thread of a DSQ that may run on the dispatching CPU to the CPU's local DSQ. True if
    /// there was one.
    fn move_to_local(&mut self, dsq: u64) -> bool;
    /// The first thread of a DSQ.
    fn peek(&self, dsq: u64) -> Option<u32>;
    /// The number of the last insertion into any DSQ.
    fn newest(&self) -> u64;
    /// The next thread of a DSQ after a place, of the threads inserted no later than `newest`; and its place:
    /// vtime and insertion.
    fn next(&self, dsq: u64, newest: u64, place: [u64; 2]) -> Option<(u32, [u64; 2])>;
    /// Moves a thread from a DSQ to another DSQ, or to another place in its DSQ.
    fn move_to_dsq(&mut self, thread: u32, from: u64, to: u64, vtime: u64);
    /// The number of threads in a DSQ.
    fn nr_queued(&self, dsq: u64) -> u32;
    /// Gives a thread another slice, in ns.
    fn set_slice(&mut self, thread: u32, slice: u64);
    /// The kernel's own choice of a CPU for a waking thread, and whether that CPU was idle and has been
    /// claimed.
    fn select_cpu(&mut self, thread: u32, before: u32, flags: u64) -> (u32, bool);
    /// Claims a CPU, if it is idle. True if it was.
    fn claim_idle(&mut self, cpu: u32) -> bool;
    /// Claims an idle CPU that the thread may use.
    fn claim_any_idle(&mut self, thread: u32) -> Option<u32>;
    /// Whether a CPU idles that the thread may use; none: any CPU.
    fn has_idle_cpu(&self, thread: Option<u32>) -> bool;
    /// Makes a CPU reschedule. `flags` as the kernel's.
    fn kick(&mut self, cpu: u32, flags: u64);
    /// Arms a timer: [`Native::timer`] is to be called after `ns`, and not at the time armed before.
    fn arm_timer(&mut self, timer: u32, ns: u64);
}

/// Values of the kernel that [`Kernel`] gets.
pub mod flags {
    /// The local DSQ of the CPU that was selected, or that the thread is on.
    pub const DSQ_LOCAL: u64 = 0x8000_0000_0000_0002;
    /// Inserts the thread at the head of the local DSQ, and preempts the CPU's thread.
    pub const ENQ_PREEMPT: u64 = 1 << 32;
    /// Makes only an idle CPU reschedule.
    pub const KICK_IDLE: u64 = 1;
    /// Preempts the CPU's thread.
    pub const KICK_PREEMPT: u64 = 2;
}

/// A thread, when it comes under the scheduler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewThread {
    /// The thread group leader; none: the thread itself.
    pub leader: Option<u32>,
    /// The thread's cgroup, as added; none: the root.
    pub group: Option<u64>,
    /// The weight by nice, as sched_ext has it: 1 to 10 000, 100 for nice 0.
    pub weight: u32,
    /// The number of CPUs that the thread may use.
    pub allowed: u32,
    /// Whether the current thread ([`Kernel::current`]) forked the thread, and is its parent.
    pub forked: bool,
}

/// A cgroup's `cpu.max` and `cpu.max.burst`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupBandwidth {
    /// The period, in us.
    pub period_us: u64,
    /// CPU time of all threads of the cgroup in a period, in us.
    pub quota_us: u64,
    /// Unused CPU time that may accumulate beyond the quota, in us.
    pub burst_us: u64,
}

/// Memory of a C structure, aligned to two cache lines, which only C reads and writes.
struct Memory {
    lines: *mut [Line],
}

#[derive(Clone)]
#[repr(align(128))]
#[expect(dead_code, reason = "only C reads and writes it")]
struct Line([u64; 16]);

impl Memory {
    fn zeroed(size: u64) -> Memory {
        let lines: Box<[Line]> = vec![Line([0; 16]); (size as usize).div_ceil(128)].into();
        Memory {
            lines: Box::into_raw(lines),
        }
    }

    fn pointer(&self) -> *mut c_void {
        self.lines.cast()
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: it came from a box, and is given back once.
        drop(unsafe { Box::from_raw(self.lines) });
    }
}

/// The scheduler, for one simulated kernel.
pub struct Native {
    /// The C source's variables, while another scheduler's are loaded on this thread.
    saved: Rc<RefCell<Vec<u8>>>,
    /// The C source's arrays of CPUs, LLCs and servers.
    arrays: Memory,
    tasks: Vec<Memory>,
    /// The current task in interrupts.
    idle: Memory,
    cgroups: HashMap<u64, Memory>,
    groups: HashMap<u64, Box<Group>>,
    numbers: Vec<CpuId>,
    solver: RateSolver,
}

thread_local! {
    /// The scheduler whose state the C source's variables hold.
    static LOADED: RefCell<Option<Rc<RefCell<Vec<u8>>>>> = const { RefCell::new(None) };
    /// The operation that is being called; null: none.
    static CALL: Cell<*mut Call<'static>> = const { Cell::new(ptr::null_mut()) };
}

struct Call<'a> {
    native: *mut Native,
    kernel: &'a mut dyn Kernel,
}

impl Native {
    /// Makes a scheduler for a machine; no thread is under it yet.
    ///
    /// # Errors
    /// The machine has more CPUs or caches than the scheduler is made for, or the scheduler's initialisation
    /// fails.
    pub fn new(
        topology: &Topology,
        options: &Options,
        kernel: &mut dyn Kernel,
    ) -> Result<Native, SchedError> {
        let cpus = topology.cpus.len();
        let raw = raw_options(options, &llcs_of_cpus(topology, cpus)?, cpus);
        // SAFETY: these only return sizes.
        let (size, arrays, task) = unsafe {
            (
                quell_native_size(),
                quell_native_arrays_size(),
                quell_native_task_size(),
            )
        };
        let mut native = Native {
            saved: Rc::new(RefCell::new(vec![0; size as usize])),
            arrays: Memory::zeroed(arrays),
            tasks: Vec::new(),
            idle: Memory::zeroed(task),
            cgroups: HashMap::new(),
            groups: HashMap::new(),
            numbers: topology.cpus.iter().map(|cpu| cpu.id).collect(),
            solver: RateSolver::default(),
        };
        let error = native.call(kernel, |_| {
            // SAFETY: `raw` is a `struct options`; the state is this scheduler's and fresh.
            unsafe {
                quell_native_set_options(&raw);
                quell_native_init()
            }
        });
        match error {
            0 => Ok(native),
            error => Err(SchedError::Refused {
                reason: format!("its initialisation gave {error}"),
                log: String::new(),
            }),
        }
    }

    /// Loads this scheduler's state and calls an operation, which may call back.
    fn call<T>(&mut self, kernel: &mut dyn Kernel, operation: impl FnOnce(&Native) -> T) -> T {
        self.load();
        let mut call = Call {
            native: self,
            kernel,
        };
        let before = CALL.replace((&raw mut call).cast());
        // SAFETY: `call.native` is `self`, which is borrowed mutably for all of this function; callbacks make
        // their references anew from the same pointer and only while the operation, which holds none, waits
        // for them.
        let result = operation(unsafe { &*call.native });
        CALL.set(before);
        result
    }

    fn load(&self) {
        LOADED.with_borrow_mut(|loaded| {
            if loaded
                .as_ref()
                .is_some_and(|it| Rc::ptr_eq(it, &self.saved))
            {
                return;
            }
            // SAFETY: both copy exactly `quell_native_size()` bytes, which each `saved` has; `arrays` has
            // `quell_native_arrays_size()`, is aligned to 128, and is not used once this scheduler is gone:
            // another one is loaded before an operation is called.
            unsafe {
                if let Some(other) = loaded {
                    quell_native_save(other.borrow_mut().as_mut_ptr().cast());
                }
                quell_native_load(self.saved.borrow().as_ptr().cast());
                quell_native_place(self.arrays.pointer().cast());
            }
            *loaded = Some(self.saved.clone());
        });
    }

    fn task(&self, thread: u32) -> *mut c_void {
        self.tasks[thread as usize].pointer()
    }

    /// Adds a cgroup, weight 1 to 10 000; `id` is not 0. `parent` was added before; none: the root.
    pub fn add_group(
        &mut self,
        kernel: &mut dyn Kernel,
        id: u64,
        parent: Option<u64>,
        weight: u32,
    ) {
        // SAFETY: only tells a size.
        let size = unsafe { quell_native_cgroup_size() };
        // The root has no parent, and level 0.
        let root = self
            .cgroups
            .entry(0)
            .or_insert_with(|| Memory::zeroed(size));
        let root = root.pointer();
        let above = parent.and_then(|parent| self.cgroups.get(&parent));
        let above = above.map_or(root, Memory::pointer);
        let memory = Memory::zeroed(size);
        let at = memory.pointer();
        self.cgroups.insert(id, memory);
        self.call(kernel, |_| {
            // SAFETY: zeroed memory of a cgroup's size that stays where it is, as its parent's does.
            unsafe { quell_native_cgroup(at, id, above, weight) }
        });
    }

    /// Sets the bandwidth limit (`cpu.max`, `cpu.max.burst`) of a cgroup that was added.
    pub fn set_bandwidth(&mut self, kernel: &mut dyn Kernel, id: u64, limit: GroupBandwidth) {
        let Some(group) = self.cgroups.get(&id).map(Memory::pointer) else {
            return;
        };
        self.call(kernel, |_| {
            let GroupBandwidth {
                period_us,
                quota_us,
                burst_us,
            } = limit;
            // SAFETY: a cgroup of this scheduler's, whose state is loaded.
            unsafe { quell_native_set_bandwidth(group, period_us, quota_us, burst_us) }
        });
    }

    /// Adds a thread; its number is the number of threads added before.
    pub fn add_thread(&mut self, kernel: &mut dyn Kernel, thread: NewThread) {
        // SAFETY: only tells a size.
        let memory = Memory::zeroed(unsafe { quell_native_task_size() });
        let at = memory.pointer();
        let leader = thread
            .leader
            .map_or(ptr::null_mut(), |number| self.task(number));
        self.tasks.push(memory);
        let pid = self.tasks.len() as u32;
        let group = thread.group.and_then(|id| self.cgroups.get(&id));
        let group = group.map_or(ptr::null_mut(), Memory::pointer);
        self.call(kernel, |_| {
            // SAFETY: zeroed memory of a task's size that stays where it is, as its leader's and its cgroup's
            // do.
            unsafe {
                let task = quell_native_task(at, pid, leader, thread.weight, thread.allowed);
                quell_native_init_task(task, group, thread.forked)
            }
        });
    }

    /// A thread begins to exit: a thread that it wakes from here on may have waited for that.
    pub fn begin_exit(&mut self, thread: u32) {
        // SAFETY: a task of this scheduler's.
        unsafe { quell_native_begin_exit(self.task(thread)) }
    }

    /// A thread has exited, and the scheduler no longer knows it; its number is not used again.
    pub fn exit_thread(&mut self, kernel: &mut dyn Kernel, thread: u32) {
        // SAFETY: a task of this scheduler's, whose state is loaded.
        self.call(kernel, |native| unsafe {
            quell_native_exit_task(native.task(thread))
        });
    }

    /// Changes the number of CPUs that a thread may use.
    pub fn allow(&mut self, thread: u32, allowed: u32) {
        // SAFETY: a task of this scheduler's.
        unsafe { quell_native_allow(self.task(thread), allowed) }
    }

    /// ops.select_cpu(): a thread wakes. `before`: the CPU that it was on. Returns the CPU that it goes to.
    pub fn select_cpu(&mut self, kernel: &mut dyn Kernel, thread: u32, before: u32) -> u32 {
        self.call(kernel, |native| {
            let task = native.task(thread);
            // SAFETY: a task of this scheduler's, whose state is loaded.
            unsafe { quell_native_select_cpu(task, before as i32, 0) as u32 }
        })
    }

    /// Whether a thread counts as ready or running.
    pub fn set_queued(&mut self, thread: u32, queued: bool) {
        // SAFETY: a task of this scheduler's.
        unsafe { quell_native_set_queued(self.task(thread), queued) }
    }

    /// ops.enqueue(): a thread is runnable, because it woke or because its slice is over.
    pub fn enqueue(&mut self, kernel: &mut dyn Kernel, thread: u32, wakes: bool) {
        // SAFETY: a task of this scheduler's, whose state is loaded.
        self.call(kernel, |native| unsafe {
            quell_native_enqueue(native.task(thread), wakes)
        });
    }

    /// Sets a task's sum_exec_runtime, before an operation reads it.
    fn tell_cpu_time(&self, kernel: &dyn Kernel, thread: u32) {
        // SAFETY: a task of this scheduler's.
        unsafe { quell_native_set_exec(self.task(thread), kernel.cpu_time(thread)) }
    }

    /// ops.dispatch(): a CPU needs a thread; `ran`: the thread that ran there.
    pub fn dispatch(&mut self, kernel: &mut dyn Kernel, cpu: u32, ran: Option<u32>) {
        if let Some(ran) = ran {
            self.tell_cpu_time(kernel, ran);
        }
        self.call(kernel, |native| {
            let ran = ran.map_or(ptr::null_mut(), |thread| native.task(thread));
            // SAFETY: a task of this scheduler's or null, and the scheduler's state is loaded.
            unsafe { quell_native_dispatch(cpu as i32, ran) }
        });
    }

    /// ops.running(): a thread begins to run.
    pub fn running(&mut self, kernel: &mut dyn Kernel, thread: u32) {
        self.tell_cpu_time(kernel, thread);
        // SAFETY: a task of this scheduler's, whose state is loaded.
        self.call(kernel, |native| unsafe {
            quell_native_running(native.task(thread))
        });
    }

    /// ops.stopping(): a thread stops running.
    pub fn stopping(&mut self, kernel: &mut dyn Kernel, thread: u32, ready: bool) {
        self.tell_cpu_time(kernel, thread);
        // SAFETY: a task of this scheduler's, whose state is loaded.
        self.call(kernel, |native| unsafe {
            quell_native_stopping(native.task(thread), ready)
        });
    }

    /// ops.update_idle(): a CPU begins or ceases to idle.
    pub fn update_idle(&mut self, kernel: &mut dyn Kernel, cpu: u32, idle: bool) {
        // SAFETY: the scheduler's state is loaded; it checks the number.
        self.call(kernel, |_| unsafe {
            quell_native_update_idle(cpu as i32, idle)
        });
    }

    /// A timer that [`Kernel::arm_timer`] armed expires.
    pub fn timer(&mut self, kernel: &mut dyn Kernel, timer: u32) {
        // SAFETY: the scheduler's state is loaded; timers have the numbers that it gave.
        self.call(kernel, |_| unsafe { quell_native_timer(timer) });
    }

    /// As [`crate::Scheduler::set_thread`].
    pub fn set_thread(&mut self, kernel: &mut dyn Kernel, thread: u32, setting: ThreadSetting) {
        // Pid 0 is the idle thread's.
        let raw = setting.raw(thread + 1);
        // SAFETY: the setting of a thread of this scheduler's, whose state is loaded.
        self.call(kernel, |_| unsafe { quell_native_set_thread(&raw) });
    }

    /// As [`crate::Scheduler::set_server`].
    ///
    /// # Errors
    /// The scheduler refuses the server, for the reasons of [`crate::Scheduler::set_server`].
    pub fn set_server(
        &mut self,
        kernel: &mut dyn Kernel,
        setting: ServerSetting,
    ) -> Result<(), SchedError> {
        let raw = setting.raw();
        // SAFETY: the scheduler's state is loaded; it checks the numbers.
        match self.call(kernel, |_| unsafe { quell_native_set_server(&raw) }) {
            0 => Ok(()),
            error => Err(SchedError::Refused {
                reason: std::io::Error::from_raw_os_error(-error).to_string(),
                log: String::new(),
            }),
        }
    }

    /// A step of the rate solver: to be called every [`crate::RATE_PERIOD`], where shares are on.
    pub fn solve_rates(&mut self, kernel: &dyn Kernel) {
        self.load();
        // SAFETY: the array of all share slots, whose fields are atomics of the same size, and which C does
        // not use before this returns.
        let slots: &[ShareSlot] =
            unsafe { std::slice::from_raw_parts(quell_native_share_slots(), MAX_SHARE_SLOTS) };
        // SAFETY: as above.
        let hints: &ShareSlotHints = unsafe { &*quell_native_share_slot_hints() };
        let mut solver = std::mem::take(&mut self.solver);
        solver.step(hints, slots, &mut Simulated(self, kernel));
        self.solver = solver;
    }

    /// The CPU time that a server got, by the server's number; `None`: no server can have that number.
    pub fn server(&self, number: u32) -> Option<ServerStats> {
        self.load();
        // SAFETY: the array of all servers, which no code changes while it is borrowed here.
        let slots: &[ServerCtx] =
            unsafe { std::slice::from_raw_parts(quell_native_servers(), MAX_SERVERS) };
        slots.get(number as usize).map(ServerCtx::stats)
    }

    /// The scheduler's counters.
    pub fn stats(&self) -> Stats {
        self.load();
        // SAFETY: the array of all CPUs' counters, which no code changes while it is borrowed here.
        let slots: &[CpuCtx] = unsafe { std::slice::from_raw_parts(quell_native_cpus(), MAX_CPUS) };
        let known = self.numbers.iter();
        Stats::of(known.filter_map(|cpu| Some((*cpu, slots.get(cpu.0 as usize)?))))
    }
}

/// A simulated kernel, for [`RateSolver`]. A thread's id is its number plus one.
struct Simulated<'a>(&'a Native, &'a dyn Kernel);

impl Host for Simulated<'_> {
    fn now(&self) -> u64 {
        self.1.now()
    }

    fn possible(&self) -> usize {
        self.0.numbers.len()
    }

    fn online(&mut self) -> Option<CpuSet> {
        Some(self.0.numbers.iter().copied().collect())
    }

    fn group(&mut self, id: u64) -> Option<Group> {
        self.0.groups.get(&id).map(|group| **group)
    }

    fn allowed(&mut self, tid: u32) -> Option<CpuSet> {
        let numbers = self.0.numbers.iter().copied();
        let may = |cpu: &CpuId| self.1.may_use(tid - 1, cpu.0);
        Some(numbers.filter(may).collect())
    }
}

impl Drop for Native {
    fn drop(&mut self) {
        // At the end of the thread there is nothing to unload.
        let _ = LOADED.try_with(|loaded| {
            if let Ok(mut loaded) = loaded.try_borrow_mut() {
                loaded.take_if(|it| Rc::ptr_eq(it, &self.saved));
            }
        });
    }
}

unsafe extern "C" {
    fn quell_native_size() -> u64;
    fn quell_native_arrays_size() -> u64;
    fn quell_native_place(at: *mut c_char);
    fn quell_native_save(to: *mut c_char);
    fn quell_native_load(from: *const c_char);
    fn quell_native_set_options(options: *const RawOptions);
    fn quell_native_cpus() -> *const CpuCtx;
    fn quell_native_task_size() -> u64;
    fn quell_native_task(
        zeroed: *mut c_void,
        pid: u32,
        leader: *mut c_void,
        weight: u32,
        allowed: u32,
    ) -> *mut c_void;
    fn quell_native_pid(task: *const c_void) -> u32;
    fn quell_native_allow(task: *mut c_void, allowed: u32);
    fn quell_native_set_exec(task: *mut c_void, ns: u64);
    fn quell_native_set_vtime(task: *mut c_void, vtime: u64);
    fn quell_native_set_queued(task: *mut c_void, queued: bool);
    fn quell_native_init() -> c_int;
    fn quell_native_init_task(task: *mut c_void, cgroup: *mut c_void, fork: bool) -> c_int;
    fn quell_native_begin_exit(task: *mut c_void);
    fn quell_native_exit_task(task: *mut c_void);
    fn quell_native_cgroup_size() -> u64;
    fn quell_native_cgroup(zeroed: *mut c_void, id: u64, parent: *mut c_void, weight: u32)
    -> c_int;
    fn quell_native_set_bandwidth(
        cgroup: *mut c_void,
        period_us: u64,
        quota_us: u64,
        burst_us: u64,
    );
    fn quell_native_select_cpu(task: *mut c_void, before: c_int, flags: u64) -> c_int;
    fn quell_native_enqueue(task: *mut c_void, wakes: bool);
    fn quell_native_dispatch(cpu: c_int, ran: *mut c_void);
    fn quell_native_running(task: *mut c_void);
    fn quell_native_stopping(task: *mut c_void, runnable: bool);
    fn quell_native_update_idle(cpu: c_int, idle: bool);
    fn quell_native_timer(index: u32);
    fn quell_native_set_thread(setting: *const layout::ThreadSetting) -> c_int;
    fn quell_native_set_server(setting: *const layout::ServerSetting) -> c_int;
    fn quell_native_servers() -> *const ServerCtx;
    fn quell_native_share_slot_hints() -> *const ShareSlotHints;
    fn quell_native_share_slots() -> *const ShareSlot;
}

/// The functions that the C source calls.
mod callbacks {
    use super::*;

    fn kernel<T>(function: impl FnOnce(&mut dyn Kernel) -> T) -> T {
        let call = CALL.get();
        assert!(!call.is_null(), "the scheduler runs only when it is called");
        // SAFETY: set by `Native::call`, which waits on this thread's stack and uses nothing of it meanwhile.
        function(unsafe { &mut *(*call).kernel })
    }

    fn native<T>(function: impl FnOnce(&mut Native) -> T) -> T {
        let call = CALL.get();
        assert!(!call.is_null(), "the scheduler runs only when it is called");
        // SAFETY: as for `kernel`.
        function(unsafe { &mut *(*call).native })
    }

    fn number(task: *const c_void) -> u32 {
        // SAFETY: the C source passes on tasks that it was given.
        (unsafe { quell_native_pid(task) }).wrapping_sub(1)
    }

    fn pointer(thread: Option<u32>) -> *mut c_void {
        native(|native| match thread {
            Some(thread) => native.task(thread),
            None => ptr::null_mut(),
        })
    }

    #[unsafe(no_mangle)]
    extern "C" fn bpf_ktime_get_ns() -> u64 {
        kernel(|kernel| kernel.now())
    }

    #[unsafe(no_mangle)]
    extern "C" fn quell_native_this_cpu() -> u32 {
        kernel(|kernel| kernel.this_cpu())
    }

    #[unsafe(no_mangle)]
    extern "C" fn quell_native_current() -> *mut c_void {
        match kernel(|kernel| kernel.current()) {
            Some(thread) => pointer(Some(thread)),
            None => native(|native| native.idle.pointer()),
        }
    }

    #[unsafe(no_mangle)]
    extern "C" fn scx_bpf_task_cpu(task: *const c_void) -> c_int {
        kernel(|kernel| kernel.cpu_of(number(task)) as c_int)
    }

    /// A cpumask is a pointer to the thread that it belongs to.
    #[unsafe(no_mangle)]
    extern "C" fn bpf_cpumask_test_cpu(cpu: u32, mask: *const c_void) -> bool {
        kernel(|kernel| kernel.may_use(number(mask), cpu))
    }

    #[unsafe(no_mangle)]
    extern "C" fn scx_bpf_create_dsq(dsq: u64, _node: c_int) -> c_int {
        kernel(|kernel| kernel.create_dsq(dsq));
        0
    }

    #[unsafe(no_mangle)]
    extern "C" fn scx_bpf_dsq_insert___v2___q(
        task: *mut c_void,
        dsq: u64,
        slice: u64,
        flags: u64,
    ) -> bool {
        kernel(|kernel| kernel.insert(number(task), dsq, slice, None, flags));
        true
    }

    /// `struct scx_bpf_dsq_insert_vtime_args`.
    #[repr(C)]
    struct InsertVtime {
        dsq: u64,
        slice: u64,
        vtime: u64,
        flags: u64,
    }

    #[unsafe(no_mangle)]
    extern "C" fn __scx_bpf_dsq_insert_vtime(task: *mut c_void, args: *const InsertVtime) -> bool {
        // SAFETY: the C source passes on tasks that it was given, and its own arguments.
        let args = unsafe {
            quell_native_set_vtime(task, (*args).vtime);
            &*args
        };
        kernel(|kernel| {
            let vtime = Some(args.vtime);
            kernel.insert(number(task), args.dsq, args.slice, vtime, args.flags);
        });
        true
    }

    #[unsafe(no_mangle)]
    extern "C" fn scx_bpf_dsq_move_to_local___v2___q(dsq: u64, _flags: u64) -> bool {
        kernel(|kernel| kernel.move_to_local(dsq))
    }

    #[unsafe(no_mangle)]
    extern "C" fn scx_bpf_dsq_peek(dsq: u64) -> *mut c_void {
        pointer(kernel(|kernel| kernel.peek(dsq)))
    }

    #[unsafe(no_mangle)]
    extern "C" fn quell_native_newest() -> u64 {
        kernel(|kernel| kernel.newest())
    }

    #[unsafe(no_mangle)]
    extern "C" fn quell_native_next(dsq: u64, newest: u64, place: *mut [u64; 2]) -> *mut c_void {
        // SAFETY: the iterator's, which is on the caller's stack and known to no other code.
        let place = unsafe { &mut *place };
        let found = kernel(|kernel| kernel.next(dsq, newest, *place));
        pointer(found.map(|(thread, at)| {
            *place = at;
            thread
        }))
    }

    #[unsafe(no_mangle)]
    extern "C" fn bpf_cpumask_intersects(mask: *const c_void, _idle: *const c_void) -> bool {
        kernel(|kernel| kernel.has_idle_cpu(Some(number(mask))))
    }

    #[unsafe(no_mangle)]
    extern "C" fn bpf_cpumask_empty(_idle: *const c_void) -> bool {
        kernel(|kernel| !kernel.has_idle_cpu(None))
    }

    #[unsafe(no_mangle)]
    extern "C" fn quell_native_move(task: *mut c_void, from: u64, to: u64, vtime: u64) {
        // SAFETY: a thread that was added.
        unsafe { quell_native_set_vtime(task, vtime) };
        kernel(|kernel| kernel.move_to_dsq(number(task), from, to, vtime));
    }

    #[unsafe(no_mangle)]
    extern "C" fn scx_bpf_dsq_nr_queued(dsq: u64) -> c_int {
        kernel(|kernel| kernel.nr_queued(dsq) as c_int)
    }

    #[unsafe(no_mangle)]
    extern "C" fn scx_bpf_task_set_slice(task: *mut c_void, slice: u64) -> bool {
        kernel(|kernel| kernel.set_slice(number(task), slice));
        true
    }

    #[unsafe(no_mangle)]
    extern "C" fn scx_bpf_select_cpu_dfl(
        task: *mut c_void,
        before: c_int,
        flags: u64,
        idle: *mut bool,
    ) -> c_int {
        let (cpu, idles) = kernel(|kernel| kernel.select_cpu(number(task), before as u32, flags));
        // SAFETY: the C source's variable.
        unsafe { *idle = idles };
        cpu as c_int
    }

    #[unsafe(no_mangle)]
    extern "C" fn scx_bpf_test_and_clear_cpu_idle(cpu: c_int) -> bool {
        kernel(|kernel| kernel.claim_idle(cpu as u32))
    }

    #[unsafe(no_mangle)]
    extern "C" fn scx_bpf_pick_idle_cpu(mask: *const c_void, _flags: u64) -> c_int {
        let cpu = kernel(|kernel| kernel.claim_any_idle(number(mask)));
        cpu.map_or(-16, |cpu| cpu as c_int) // EBUSY
    }

    #[unsafe(no_mangle)]
    extern "C" fn scx_bpf_kick_cpu(cpu: c_int, flags: u64) {
        kernel(|kernel| kernel.kick(cpu as u32, flags));
    }

    #[unsafe(no_mangle)]
    extern "C" fn bpf_task_from_pid(pid: c_int) -> *mut c_void {
        pointer(Some((pid as u32).wrapping_sub(1)))
    }

    /// Ends the program: a panic cannot pass through C.
    #[unsafe(no_mangle)]
    extern "C" fn quell_native_failed(why: *const c_char) {
        // SAFETY: one of the C source's string literals.
        let why = unsafe { CStr::from_ptr(why) };
        panic!("the scheduler gave up: {}", why.to_string_lossy());
    }

    #[unsafe(no_mangle)]
    extern "C" fn quell_native_arm(timer: u32, ns: u64) {
        kernel(|kernel| kernel.arm_timer(timer, ns));
    }

    #[unsafe(no_mangle)]
    extern "C" fn quell_native_group(id: u64) -> *mut Group {
        native(|native| match native.groups.get_mut(&id) {
            Some(group) => &raw mut **group,
            None => ptr::null_mut(),
        })
    }

    #[unsafe(no_mangle)]
    extern "C" fn quell_native_add_group(id: u64, group: *const Group) {
        // SAFETY: the C source's variable.
        let group = Box::new(unsafe { *group });
        native(|native| native.groups.insert(id, group));
    }
}

//! Remarks on a tenant that its figures do not show: why it has no processes, or why its settings cannot
//! hold.
//!
//! Remarks are made from the last snapshot and hold now. What happened once is a note.

use quell_model::{SchedClass, TenantSample, ThreadState};

/// The remarks on a tenant, a sentence each, without the tenant's name.
pub fn of(tenant: &TenantSample) -> Vec<String> {
    let mut remarks = Vec::new();
    if tenant.threads.is_empty() && tenant.labels.is_empty() {
        remarks.push(match &tenant.taken_by {
            Some(by) => format!(
                "what matches its selectors is {by}'s, which comes first in the configuration"
            ),
            None => "no process matches its selectors".to_string(),
        });
        let selectors = &tenant.selectors;
        let globs = [&selectors.cgroup, &selectors.exe, &selectors.libvirt];
        if globs.into_iter().flatten().any(|glob| glob.contains('\\')) {
            remarks.push(
                "a backslash in a glob makes the next character plain: to match the one in systemd's `\\x2d` write two, \
                 which are four in TOML's double quotes"
                    .to_string(),
            );
        }
    }
    if let Some(cpus) = tenant.limit_cpus {
        remarks.push(format!(
            "its cgroup, or one above it, is limited to {cpus:.2} CPUs (cpu.max): what stops it there is nobody's doing"
        ));
    }
    let threads = tenant.threads.len();
    let count = |class| {
        tenant
            .threads
            .iter()
            .filter(|it| it.settings.class == class)
            .count()
    };
    let of = |count: usize| match count == threads {
        true => "all its threads are".to_string(),
        false => format!("{count} of its {threads} threads are"),
    };
    let state = |state| tenant.threads.iter().filter(|it| it.state == state).count();
    if let stopped @ 1.. = state(ThreadState::Stopped) {
        remarks.push(format!(
            "{} stopped, by a signal (SIGSTOP) or a debugger: they want no CPU until they are continued",
            of(stopped)
        ));
    }
    if let frozen @ 1.. = state(ThreadState::Frozen) {
        remarks.push(format!(
            "{} frozen with their cgroup: they want no CPU until it is thawed",
            of(frozen)
        ));
    }
    if let real_time @ 1.. = count(SchedClass::RealTime) {
        remarks.push(format!(
            "{} real-time (SCHED_FIFO, SCHED_RR or SCHED_DEADLINE): they are left alone, and weights do not count for them",
            of(real_time)
        ));
    }
    if let idle @ 1.. = count(SchedClass::Idle) {
        remarks.push(format!(
            "{} SCHED_IDLE: they are left alone, and give way to the other threads of their cgroup",
            of(idle)
        ));
    }
    remarks
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::snapshot;

    fn tenant(threads: u32, change: impl Fn(&mut TenantSample)) -> Vec<String> {
        let mut tenant = snapshot(0, &[("a", threads)]).tenants.remove(0);
        change(&mut tenant);
        of(&tenant)
    }

    #[test]
    fn each_cause_is_told_apart() {
        assert_eq!(tenant(2, |_| ()), [""; 0]);
        let none = tenant(0, |_| ());
        assert_eq!(none, ["no process matches its selectors"]);
        let taken = tenant(0, |it| it.taken_by = Some("web".into()));
        assert!(taken[0].contains("is web's"), "{taken:?}");
        let escaped = tenant(0, |it| {
            let selectors = std::sync::Arc::make_mut(&mut it.selectors);
            selectors.cgroup = Some("machine-qemu\\x2d1.scope/**".to_string());
        });
        assert!(escaped[1].contains("four in TOML"), "{escaped:?}");
        let limited = tenant(1, |it| it.limit_cpus = Some(0.2));
        assert!(limited[0].contains("0.20 CPUs"), "{limited:?}");
        let class = |threads, class| tenant(threads, |it| it.threads[0].settings.class = class);
        let real_time = class(1, SchedClass::RealTime);
        assert!(
            real_time[0].starts_with("all its threads are real-time"),
            "{real_time:?}"
        );
        let some = class(3, SchedClass::RealTime);
        assert!(
            some[0].starts_with("1 of its 3 threads are real-time"),
            "{some:?}"
        );
        assert!(class(2, SchedClass::Idle)[0].contains("SCHED_IDLE"));
        let state = |state| tenant(2, |it| it.threads[1].state = state);
        let stopped = state(ThreadState::Stopped);
        assert!(
            stopped[0].starts_with("1 of its 2 threads are stopped"),
            "{stopped:?}"
        );
        assert!(state(ThreadState::Frozen)[0].contains("frozen with their cgroup"));
    }
}

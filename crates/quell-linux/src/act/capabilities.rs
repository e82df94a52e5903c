//! Finds out which settings this host lets Quell change.

use super::cgroup::{Cgroups, Version};
use super::report::{Capabilities, Capability};
use super::state::Host;
use super::thread;
use quell_sys::capability;
use std::io;

/// Tries every kind of change on threads of this process. The host's figures come with the verdict.
pub(super) fn detect() -> (Capabilities, Host) {
    let kernel = nix::sys::utsname::uname().map_or("unknown".into(), |u| {
        u.release().to_string_lossy().into_owned()
    });
    let may = may_renice();
    let own_only = "only for threads of Quell's own user and only towards less weight: \
                    CAP_SYS_NICE is missing";
    let yes = |detail: String| Capability {
        available: true,
        detail,
    };
    let no = |detail: String| Capability {
        available: false,
        detail,
    };
    let nice = yes(if may {
        "setpriority, sched_setattr".into()
    } else {
        own_only.into()
    });
    let affinity = yes(if may {
        "sched_setaffinity, within cpusets".into()
    } else {
        "only for threads of Quell's own user: CAP_SYS_NICE is missing".into()
    });
    let probed = thread::default_slice();
    let slice = match &probed {
        Ok(Some(default)) => yes(format!(
            "sched_setattr, 0.1 ms to 100 ms (the kernel's own is {} ms)",
            *default as f64 / 1e6
        )),
        Ok(None) => no(format!(
            "Linux {kernel} has no custom slices (6.12 and later do): rescheduling latencies have \
             no effect, weights and layout do"
        )),
        Err(error) => no(format!(
            "trying it on a thread of Quell's own failed: {error}"
        )),
    };
    let cgroups = Cgroups::find();
    let cgroup_weight = match &cgroups {
        Err(error) => no(format!("/proc/self/mountinfo: {error}")),
        Ok(Cgroups { cpu: None, .. }) => no("no cgroup hierarchy has the CPU controller".into()),
        Ok(Cgroups { cpu: Some(cpu), .. }) => {
            let file = match cpu.version {
                Version::V1 => "cpu.shares (cgroup v1)",
                Version::V2 => "cpu.weight (cgroup v2)",
            };
            let mount = cpu.mount.display();
            match nix::unistd::access(&cpu.mount, nix::unistd::AccessFlags::W_OK) {
                Ok(()) => yes(format!("{file} below {mount}")),
                Err(errno) => no(format!("{file} below {mount} cannot be written: {errno}")),
            }
        }
    };
    let mut notes = Vec::new();
    if autogroup_on() {
        notes.push(
            "autogroups are on (kernel.sched_autogroup_enabled = 1): nice values act only among \
             threads of one session, except in CPU cgroups; give tenants their own cgroups, or set \
             the sysctl to 0, for weights that hold across sessions"
                .into(),
        );
    }
    let host = Host {
        default_slice: probed.unwrap_or_default(),
        cgroups: cgroups.unwrap_or_default(),
    };
    (
        Capabilities {
            kernel,
            nice,
            slice,
            affinity,
            cgroup_weight,
            notes,
        },
        host,
    )
}

/// Whether autogroups are built in and on.
pub(super) fn autogroup_on() -> bool {
    read("/proc/sys/kernel/sched_autogroup_enabled").is_ok_and(|text| text.trim() == "1")
}

fn may_renice() -> bool {
    let effective = capability::Capabilities::effective().ok().flatten();
    effective.is_some_and(|it| it.has(capability::SYS_NICE))
}

fn read(path: &str) -> io::Result<String> {
    std::fs::read_to_string(path)
}

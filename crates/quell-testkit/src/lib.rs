//! What the tests and studies of Quell share, and what the product does not need.
//!
//! - [`skip!`]: skipping a test where the machine lacks what the test needs;
//! - [`eventually`]: waiting until a condition holds;
//! - [`audit`]: whether servers got their budgets, from the events of a CPU's servers;
//! - [`exhaustive`]: whether a CPU can keep a small set of servers, from every arrival and every need.
//!
//! A skipped test passes, so a machine that lacks much would be green with little tested. Where
//! `QUELL_REQUIRE` lists means (`root`, `cgroups`, `bpf`, `lab`, `apps`, separated by commas; `.ci/run` sets
//! it), the machine is said to have them, and a test that is skipped for want of one of them fails.
//! `QUELL_SKIPPED` names a file that is there, to which each skipped test appends a line; `./dev test` makes
//! its summary from them.
//!
//! ```no_run
//! quell_testkit::skip!(Other, "this machine has {} CPU", 1);
//! ```

pub mod audit;
pub mod exhaustive;

use std::io::Write;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The longest pause of [`eventually`] between two questions.
const PAUSE_MAX: Duration = Duration::from_millis(100);

/// What a test needs of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Means {
    /// The rights of root: other processes' settings.
    Root,
    /// Cgroups can be made and set, and namespaces made.
    Cgroups,
    /// BPF programs load, and the kernel tells of its types (BTF).
    Bpf,
    /// The kernel lab is set up.
    Lab,
    /// Programs of the distribution: memcached, nginx, redis, QEMU, libvirt and others.
    Apps,
    /// A feature of this kernel or this machine, which cannot be required.
    Other,
}

impl Means {
    /// Its name in `QUELL_REQUIRE`; `None` where it cannot be required.
    fn name(self) -> Option<&'static str> {
        match self {
            Means::Root => Some("root"),
            Means::Cgroups => Some("cgroups"),
            Means::Bpf => Some("bpf"),
            Means::Lab => Some("lab"),
            Means::Apps => Some("apps"),
            Means::Other => None,
        }
    }
}

/// Says why the running test is skipped: the means that the machine lacks, and the reason as for `format!`.
///
/// # Panics
/// If `QUELL_REQUIRE` lists the means.
#[macro_export]
macro_rules! skip {
    ($means:ident, $($reason:tt)+) => {
        $crate::skipped($crate::Means::$means, &::std::format!($($reason)+))
    };
}

/// Says why a test is skipped; [`skip!`] calls it.
///
/// # Panics
/// If `QUELL_REQUIRE` lists the means, or a name that is none.
pub fn skipped(means: Means, reason: &str) {
    let required = std::env::var("QUELL_REQUIRE").unwrap_or_default();
    assert!(
        !is_required(means, &required),
        "this machine is to have what the test needs (QUELL_REQUIRE={required}), but: {reason}"
    );
    eprintln!("skipped: {reason}");
    let Some(file) = std::env::var_os("QUELL_SKIPPED") else {
        return;
    };
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("a test");
    let line = format!("{test}: {}\n", reason.replace('\n', " "));
    // Not created: root may not create a file of another user's in /tmp anew (fs.protected_regular).
    let opened = std::fs::OpenOptions::new().append(true).open(file);
    // The summary is a help: a test does not fail for want of it.
    let _ = opened.and_then(|mut file| file.write_all(line.as_bytes()));
}

/// Waits until a condition holds; `false` where it does not within the limit. The condition is tested at
/// least twice, after pauses that grow to 0.1 s.
///
/// A test waits with a limit far beyond the usual time, so that the machine's load does not decide whether
/// the test passes.
#[must_use]
pub fn eventually(limit: Duration, mut holds: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    let mut pause = Duration::from_millis(1);
    while !holds() {
        sleep(pause);
        pause = PAUSE_MAX.min(2 * pause);
        // This thread may not have run for a long time: the condition has the last word.
        if start.elapsed() > limit {
            return holds();
        }
    }
    true
}

/// Whether the list has the means.
fn is_required(means: Means, list: &str) -> bool {
    let all = [
        Means::Root,
        Means::Cgroups,
        Means::Bpf,
        Means::Lab,
        Means::Apps,
    ];
    let mut names = list.split(',').filter(|name| !name.is_empty());
    names.any(|name| {
        let known = all.into_iter().find(|it| it.name() == Some(name));
        assert!(
            known.is_some(),
            "QUELL_REQUIRE: `{name}` is none of root, cgroups, bpf, lab, apps"
        );
        known == Some(means)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_listed_is_required() {
        assert!(!is_required(Means::Bpf, ""));
        assert!(is_required(Means::Bpf, "root,bpf"));
        assert!(!is_required(Means::Lab, "root,bpf"));
        assert!(!is_required(Means::Other, "root,bpf,lab,apps"));
    }

    #[test]
    fn a_condition_is_waited_for_and_has_the_last_word() {
        let mut asked = 0;
        let third = || {
            asked += 1;
            asked == 3
        };
        assert!(eventually(Duration::from_secs(60), third));
        assert_eq!(asked, 3);
        let mut asked = 0;
        assert!(eventually(Duration::ZERO, || {
            asked += 1;
            asked == 2
        }));
        assert!(!eventually(Duration::ZERO, || false));
    }

    #[test]
    #[should_panic(expected = "`bfp` is none of")]
    fn a_name_that_is_none_is_told() {
        is_required(Means::Lab, "bfp");
    }
}

//! The threads that run virtual CPUs, as KVM tells it: for QEMUs that do not name their threads (`-name
//! NAME,debug-threads=on`; the default since QEMU 10.2).
//!
//! `kvm/PID-FD/vcpuN/pid` in debugfs (Linux 6.0) holds the thread that ran a virtual CPU last, 0 before any
//! thread did. N is the id that QEMU gave to the virtual CPU, on x86 its APIC id, which leaves gaps where the
//! number of cores of a socket is no power of two: QEMU's own numbers, by which guests know their CPUs too,
//! follow the order of these ids.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

/// The folder of KVM in debugfs, at the usual mount point of debugfs.
pub(crate) const DEBUGFS: &str = "/sys/kernel/debug/kvm";

/// The numbers of the virtual CPUs that the threads of these processes run, by thread.
///
/// # Errors
/// The listing of `root` fails: there is no debugfs, no KVM, or no permission (root has it). Virtual machines
/// that end meanwhile are left out.
pub(crate) fn vcpus(root: &str, is_meant: impl Fn(u32) -> bool) -> io::Result<BTreeMap<u32, u32>> {
    let mut all = BTreeMap::new();
    for entry in std::fs::read_dir(root)?.flatten() {
        let name = entry.file_name();
        let process = name.to_str().and_then(|it| it.split_once('-'));
        let process = process.and_then(|(process, _)| process.parse().ok());
        if !process.is_some_and(&is_meant) {
            continue;
        }
        let mut ids = ids(&entry.path());
        ids.sort_unstable();
        for (number, id) in (0..).zip(ids) {
            let thread = std::fs::read_to_string(entry.path().join(format!("vcpu{id}/pid")));
            let thread = thread.ok().and_then(|it| it.trim_end().parse().ok());
            if let Some(thread) = thread.filter(|it| *it != 0) {
                all.insert(thread, number);
            }
        }
    }
    Ok(all)
}

/// The ids of the virtual CPUs of a virtual machine.
fn ids(folder: &Path) -> Vec<u32> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let id = |name: &str| name.strip_prefix("vcpu")?.parse().ok();
    entries
        .filter_map(|it| id(it.file_name().to_str()?))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn threads_by_the_order_of_their_ids() {
        let dir = tempfile::tempdir().unwrap();
        let vcpu = |machine: &str, id: u32, thread: &str| {
            let folder = dir.path().join(format!("{machine}/vcpu{id}"));
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("pid"), format!("{thread}\n")).unwrap();
        };
        // Three cores in each of two sockets.
        for (id, thread) in [
            (0, "71"),
            (1, "72"),
            (2, "73"),
            (4, "74"),
            (5, "0"),
            (6, "76"),
        ] {
            vcpu("70-11", id, thread);
        }
        vcpu("80-11", 0, "81");
        vcpu("90-11", 0, "lies");
        fs::write(dir.path().join("70-11/tlb_flush"), "7\n").unwrap();
        fs::write(dir.path().join("halt_exits"), "7\n").unwrap();

        let root = dir.path().to_str().unwrap();
        let found = vcpus(root, |process| process != 80).unwrap();
        let expected = [(71, 0), (72, 1), (73, 2), (74, 3), (76, 5)];
        assert_eq!(found, BTreeMap::from(expected));
        assert!(vcpus("/no/such/folder", |_| true).is_err());
    }
}

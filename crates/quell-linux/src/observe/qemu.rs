//! QEMU processes: the domain that a process runs, and the role of each of its threads.
//!
//! libvirt starts QEMU with `-name guest=NAME,debug-threads=on`, and QEMU then names its threads:
//! `CPU n/KVM` and `CPU n/TCG` run virtual CPUs, `IO NAME` are iothreads, `vhost-PID` move packets
//! for virtio in the kernel. Without `debug-threads=on` all threads carry the program's name: KVM
//! tells which threads are virtual CPUs ([`super::kvm`]), and all others count as emulator threads.

use quell_model::ThreadRole;
use std::path::PathBuf;

/// Whether a program is QEMU's system emulator: `qemu-system-ARCH`, `qemu-kvm` (Red Hat) or `kvm`
/// (Debian's older wrapper).
pub(crate) fn is_qemu(program: &[u8]) -> bool {
    let name = program.rsplit(|&b| b == b'/').next().unwrap_or(program);
    name.starts_with(b"qemu-system-") || name == b"qemu-kvm" || name == b"kvm"
}

/// The guest's name in a QEMU command line (NUL-separated, as `/proc/PID/cmdline` has it).
///
/// The value of `-name` is a list of options, of which the first may leave out its key `guest`; a
/// comma within a value is written twice.
pub(crate) fn guest_name(cmdline: &[u8]) -> Option<String> {
    options(&name(cmdline)?)
        .enumerate()
        .find_map(|(position, option)| match option.split_once('=') {
            Some(("guest", name)) => Some(name.to_string()),
            None if position == 0 && !option.is_empty() => Some(option),
            _ => None,
        })
}

/// Whether a QEMU with this command line runs a machine. libvirt also starts QEMUs without one, to ask them
/// what they can do.
pub(crate) fn has_machine(cmdline: &[u8]) -> bool {
    let mut arguments = cmdline.split(|&b| b == 0);
    let is_option = |it: &&[u8]| [&b"-machine"[..], b"--machine", b"-M", b"--M"].contains(it);
    while arguments.by_ref().any(|it| is_option(&it)) {
        let value = arguments.next().unwrap_or_default();
        let kind = options(&String::from_utf8_lossy(value)).next();
        if matches!(kind.as_deref(), Some("none" | "type=none")) {
            return false;
        }
    }
    true
}

/// Whether a QEMU with this command line names its threads for certain.
pub(crate) fn names_threads(cmdline: &[u8]) -> bool {
    let name = name(cmdline).unwrap_or_default();
    options(&name).any(|it| it == "debug-threads=on" || it == "debug-threads=yes")
}

/// The value of the option `-name` of a command line.
fn name(cmdline: &[u8]) -> Option<String> {
    let mut arguments = cmdline.split(|&b| b == 0);
    arguments
        .by_ref()
        .find(|a| *a == b"-name" || *a == b"--name")?;
    Some(String::from_utf8_lossy(arguments.next()?).into_owned())
}

/// The UUID in a QEMU command line, by which libvirt knows the domain: libvirt passes it to each QEMU that it
/// starts.
pub(crate) fn uuid(cmdline: &[u8]) -> Option<String> {
    let mut arguments = cmdline.split(|&b| b == 0);
    arguments
        .by_ref()
        .find(|it| *it == b"-uuid" || *it == b"--uuid")?;
    let uuid = std::str::from_utf8(arguments.next()?).ok()?;
    Some(uuid.to_ascii_lowercase())
}

/// The socket on which QEMU listens for the host side of the guest agent, by its command line: the socket of
/// the virtio-serial port `org.qemu.guest_agent.0`. `None`: there is no such socket, or another program
/// opened it for QEMU, as libvirt does.
pub(crate) fn agent_socket(cmdline: &[u8]) -> Option<PathBuf> {
    let arguments: Vec<&[u8]> = cmdline.split(|&b| b == 0).collect();
    let values = |option: &'static [u8]| {
        let is = move |it: &[u8]| {
            let rest = it.strip_prefix(b"-").unwrap_or_default();
            rest.strip_prefix(b"-").unwrap_or(rest) == option
        };
        let pairs = arguments.windows(2).filter(move |it| is(it[0]));
        pairs.map(|it| keyed(&String::from_utf8_lossy(it[1])))
    };
    let device = values(b"device").find(|it| has(it, "name", "org.qemu.guest_agent.0"))?;
    let id = value_of(&device, "chardev")?;
    let chardev = values(b"chardev").find(|it| has(it, "id", id))?;
    value_of(&chardev, "path").map(PathBuf::from)
}

/// The keys and values of an option: `driver,key=value`, or JSON.
fn keyed(text: &str) -> Vec<(String, String)> {
    if let Ok(serde_json::Value::Object(all)) = serde_json::from_str(text) {
        let words = all.into_iter();
        return words
            .filter_map(|(key, value)| Some((key, value.as_str()?.to_string())))
            .collect();
    }
    let pairs = options(text).filter_map(|it| {
        it.split_once('=')
            .map(|(key, value)| (key.to_string(), value.to_string()))
    });
    pairs.collect()
}

fn value_of<'a>(keyed: &'a [(String, String)], key: &str) -> Option<&'a str> {
    let mut all = keyed.iter();
    all.find(|(it, _)| it == key)
        .map(|(_, value)| value.as_str())
}

fn has(keyed: &[(String, String)], key: &str, value: &str) -> bool {
    value_of(keyed, key) == Some(value)
}

/// Splits at single commas; a double comma stands for one comma.
fn options(text: &str) -> impl Iterator<Item = String> {
    let mut list = vec![String::new()];
    let mut characters = text.chars().peekable();
    while let Some(c) = characters.next() {
        if c == ',' && characters.next_if_eq(&',').is_none() {
            list.push(String::new());
        } else if let Some(last) = list.last_mut() {
            last.push(c);
        }
    }
    list.into_iter()
}

/// The role of a QEMU thread of this name.
pub(crate) fn role(thread_name: &str) -> ThreadRole {
    if let Some(rest) = thread_name.strip_prefix("CPU ") {
        let (number, accelerator) = rest.split_once('/').unwrap_or((rest, ""));
        // The kernel cuts names to 15 bytes, so a high number may cut the accelerator short.
        if let (Ok(n), true) = (
            number.parse(),
            ["KVM", "TCG", "HVF", "XEN"]
                .iter()
                .any(|a| a.starts_with(accelerator)),
        ) {
            return ThreadRole::Vcpu(n);
        }
    }
    match thread_name {
        // Single-threaded emulation: one thread runs all virtual CPUs.
        "ALL CPUs/TCG" => ThreadRole::Vcpu(0),
        name if name.starts_with("IO ") || name.starts_with("vhost-") => ThreadRole::Io,
        _ => ThreadRole::Emulator,
    }
}

/// The process that a kernel thread of this name works for (`vhost-PID`, before Linux 6.4; since
/// then the workers of vhost are threads of that process).
pub(crate) fn vhost_owner(thread_name: &[u8]) -> Option<u32> {
    std::str::from_utf8(thread_name.strip_prefix(b"vhost-")?)
        .ok()?
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn programs() {
        for yes in [
            "/usr/bin/qemu-system-x86_64",
            "qemu-system-aarch64",
            "/usr/libexec/qemu-kvm",
        ] {
            assert!(is_qemu(yes.as_bytes()), "{yes}");
        }
        for no in [
            "/usr/bin/qemu-img",
            "/opt/kvm/tool",
            "",
            "/usr/bin/qemu-x86_64",
        ] {
            assert!(!is_qemu(no.as_bytes()), "{no}");
        }
    }

    #[test]
    fn names_as_libvirt_and_people_write_them() {
        let cases = [
            (
                "qemu\0-name\0guest=web-1,debug-threads=on\0-S\0",
                Some("web-1"),
            ),
            ("qemu\0-name\0web-1\0", Some("web-1")),
            ("qemu\0-name\0web-1,process=x\0", Some("web-1")),
            (
                "qemu\0--name\0debug-threads=on,guest=web-2\0",
                Some("web-2"),
            ),
            ("qemu\0-name\0guest=a,,b,debug-threads=on\0", Some("a,b")),
            ("qemu\0-name\0debug-threads=on\0", None),
            ("qemu\0-name\0", None),
            ("qemu\0-S\0", None),
            ("", None),
        ];
        for (cmdline, name) in cases {
            assert_eq!(
                guest_name(cmdline.as_bytes()).as_deref(),
                name,
                "{cmdline:?}"
            );
        }
    }

    #[test]
    fn a_qemu_that_is_only_asked_what_it_can_do_has_no_machine() {
        for (cmdline, expected) in [
            (
                "qemu\0-S\0-no-user-config\0-nodefaults\0-nographic\0-machine\0none,accel=kvm:tcg\0-daemonize\0",
                false,
            ),
            ("qemu\0-M\0none\0", false),
            ("qemu\0--machine\0type=none\0", false),
            ("qemu\0-machine\0usb=off\0-machine\0none\0", false),
            ("qemu\0-machine\0pc-q35-10.0,usb=off\0", true),
            ("qemu\0-name\0none\0", true),
            ("qemu\0-machine\0", true),
            ("qemu\0", true),
        ] {
            assert_eq!(has_machine(cmdline.as_bytes()), expected, "{cmdline:?}");
        }
    }

    #[test]
    fn uuids() {
        let uuid = "6f0d3e3c-7c1a-4b43-9d6e-1f8f3a0f5c11";
        let line = format!("qemu\0-name\0guest=a\0-uuid\0{}\0-S\0", uuid.to_uppercase());
        assert_eq!(super::uuid(line.as_bytes()).as_deref(), Some(uuid));
        assert_eq!(super::uuid(b"qemu\0-S\0-uuid"), None);
        assert_eq!(super::uuid(b"qemu\0-S\0"), None);
    }

    #[test]
    fn sockets_of_guest_agents() {
        let port = "virtserialport,chardev=qga,name=org.qemu.guest_agent.0";
        let chardev = "socket,path=/run/a,,b.sock,server=on,wait=off,id=qga";
        let json = r#"{"driver":"virtserialport","bus":"x.0","nr":1,"chardev":"qga","name":"org.qemu.guest_agent.0"}"#;
        let line = |words: &[&str]| words.join("\0").into_bytes();
        for (words, expected) in [
            (
                vec!["qemu", "-chardev", chardev, "-device", port],
                Some("/run/a,b.sock"),
            ),
            (
                vec!["qemu", "--device", json, "--chardev", chardev, "-S"],
                Some("/run/a,b.sock"),
            ),
            // libvirt passes an open file descriptor to QEMU.
            (
                vec![
                    "qemu",
                    "-chardev",
                    "socket,id=qga,fd=36,server=on",
                    "-device",
                    json,
                ],
                None,
            ),
            (
                vec![
                    "qemu",
                    "-chardev",
                    "socket,id=other,path=/x",
                    "-device",
                    port,
                ],
                None,
            ),
            (
                vec![
                    "qemu",
                    "-chardev",
                    chardev,
                    "-device",
                    "virtserialport,chardev=qga,name=org.spice",
                ],
                None,
            ),
            (vec!["qemu", "-device", port], None),
            (vec!["qemu", "-device"], None),
            (vec![""], None),
        ] {
            assert_eq!(
                agent_socket(&line(&words)).as_deref(),
                expected.map(std::path::Path::new),
                "{words:?}"
            );
        }
    }

    #[test]
    fn roles() {
        let cases = [
            ("CPU 0/KVM", ThreadRole::Vcpu(0)),
            ("CPU 17/TCG", ThreadRole::Vcpu(17)),
            ("CPU 12345678/KV", ThreadRole::Vcpu(12_345_678)),
            ("ALL CPUs/TCG", ThreadRole::Vcpu(0)),
            ("CPU x/KVM", ThreadRole::Emulator),
            ("CPU 1/other", ThreadRole::Emulator),
            ("IO iothread1", ThreadRole::Io),
            ("IO mon_iothread", ThreadRole::Io),
            ("vhost-4711", ThreadRole::Io),
            ("qemu-system-x86", ThreadRole::Emulator),
            ("call_rcu", ThreadRole::Emulator),
            ("worker", ThreadRole::Emulator),
        ];
        for (name, expected) in cases {
            assert_eq!(role(name), expected, "{name}");
        }
        assert_eq!(vhost_owner(b"vhost-4711"), Some(4711));
        assert_eq!(vhost_owner(b"vhost-"), None);
        assert_eq!(vhost_owner(b"kworker/0:1"), None);
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes: Vec<u8>, text: String) {
            let _ = (is_qemu(&bytes), has_machine(&bytes), guest_name(&bytes), agent_socket(&bytes), super::uuid(&bytes), vhost_owner(&bytes), role(&text));
        }

        #[test]
        fn any_guest_name_is_found_again(name in "[^\0]{1,20}") {
            let cmdline = format!("qemu\0-name\0guest={}\0", name.replace(',', ",,"));
            prop_assert_eq!(guest_name(cmdline.as_bytes()), Some(name));
        }
    }
}

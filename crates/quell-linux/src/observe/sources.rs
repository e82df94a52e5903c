//! The things of a host that rules make tenants: systemd's units, containers, pods, virtual machines.
//!
//! A thing is known by what a process of it shows: its cgroup's path, or its program and arguments. The paths
//! are those that systemd 247 to 258, docker, podman, containerd, CRI-O, LXC, Incus, Proxmox and the kubelet
//! make, with either cgroup driver and in every version of the hierarchy. What stands outside of a container
//! names it, so a container within a container is a part of the outer one.

use super::qemu;
use quell_model::config::TenantClass;
use std::collections::BTreeMap;

/// A thing of a host: a tenant, if a rule says so.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Thing {
    /// What identifies the thing as long as it exists, among those of its source.
    pub(crate) id: String,
    /// What a rule's `match` is matched against.
    pub(crate) names: Vec<String>,
    /// The labels of the source that the thing has.
    pub(crate) labels: BTreeMap<&'static str, String>,
    /// The class of the tenant where the rule does not say it.
    pub(crate) class: TenantClass,
}

impl Thing {
    fn new(id: String, names: Vec<String>, labels: &[(&'static str, &str)]) -> Thing {
        let labels = labels.iter().filter(|(_, value)| !value.is_empty());
        Thing {
            id,
            names,
            labels: labels
                .map(|&(key, value)| (key, value.to_string()))
                .collect(),
            class: TenantClass::Latency,
        }
    }
}

/// The components of a path with the path up to each.
fn components(path: &str) -> impl Iterator<Item = (&str, &str)> {
    let whole = path;
    path.split('/')
        .filter(|it| !it.is_empty())
        .map(move |part| {
            let end = part.as_ptr() as usize - whole.as_ptr() as usize + part.len();
            (part, &whole[..end])
        })
}

/// The user whose slice or manager a cgroup's path is below, as systemd names them. What is there, the user
/// may have made himself, by any name.
pub(crate) fn user_of(path: &str) -> Option<&str> {
    let of = |part: &str, before: &str, after: &str| -> bool {
        let id = part
            .strip_prefix(before)
            .and_then(|it| it.strip_suffix(after));
        id.is_some_and(|id| !id.is_empty() && id.bytes().all(|b| b.is_ascii_digit()))
    };
    let part = components(path).map(|(part, _)| part);
    let mut parts = part.take_while(|it| it.ends_with(".slice") || it.starts_with("user@"));
    let part = parts.find(|it| of(it, "user-", ".slice") || of(it, "user@", ".service"))?;
    let id = part
        .trim_start_matches("user")
        .trim_start_matches(['-', '@']);
    Some(id.trim_end_matches(".slice").trim_end_matches(".service"))
}

/// systemd's service or scope of a cgroup's path. A user's manager (`user@1000.service`) has units of its
/// own; below any other unit stands what the unit itself made.
pub(crate) fn unit(path: &str) -> Option<Thing> {
    let (mut slice, mut manager) = ("", false);
    let mut found: Option<(&str, &str)> = None;
    for (part, up_to) in components(path) {
        if part.ends_with(".slice") {
            // A user may call the slices of his own as he likes.
            slice = if manager { slice } else { part };
            continue;
        }
        if !(part.ends_with(".service") || part.ends_with(".scope")) {
            break;
        }
        // The manager's own processes are in a scope below its service.
        if !(manager && part == "init.scope") {
            found = Some((part, up_to));
        }
        if manager || !part.starts_with("user@") {
            break;
        }
        manager = true;
    }
    let (unit, up_to) = found?;
    let labels = [("unit", unit), ("slice", slice)];
    Some(Thing::new(up_to.to_string(), short_and_full(unit), &labels))
}

/// A unit's name as `systemctl` shows it, and without its type.
fn short_and_full(unit: &str) -> Vec<String> {
    let short = unit.rsplit_once('.').map_or(unit, |(short, _)| short);
    vec![unit.to_string(), short.to_string()]
}

/// A container, before its name is looked up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Container {
    pub(crate) runtime: &'static str,
    /// The runtime's id of 64 hexadecimal digits, or the container's name.
    pub(crate) id: String,
    path: String,
}

/// How runtimes begin the names of cgroups, before the container's id. Helpers beside the container
/// (`conmon`) have prefixes of their own, and are not the container.
const PREFIXES: [(&str, &str); 8] = [
    ("docker-", "docker"),
    ("libpod-payload-", "podman"),
    ("libpod-", "podman"),
    ("cri-containerd-", "containerd"),
    ("containerd-", "containerd"),
    ("nerdctl-", "containerd"),
    ("crio-", "cri-o"),
    ("cri-o-", "cri-o"),
];

/// The outermost container of a cgroup's path.
pub(crate) fn container(path: &str) -> Option<Container> {
    let mut above = "";
    for (part, up_to) in components(path) {
        let found = |runtime, id: &str| {
            let (id, path) = (id.to_string(), up_to.to_string());
            Some(Container { runtime, id, path })
        };
        let base = part.strip_suffix(".scope").unwrap_or(part);
        for (prefix, runtime) in PREFIXES {
            if let Some(id) = base.strip_prefix(prefix).filter(|it| is_id(it)) {
                return found(runtime, id);
            }
        }
        // `…-podUID.slice:cri-containerd:ID`: containerd with the name of a systemd cgroup, but without
        // systemd.
        if let Some((_, id)) = base
            .rsplit_once(":cri-containerd:")
            .filter(|it| is_id(it.1))
        {
            return found("containerd", id);
        }
        if is_id(base) {
            // Without a runtime's name in the path. The kubelet's runtimes name pods above.
            let runtime = match above {
                "docker" => "docker",
                _ if up_to.contains("/kubepods") => "containerd",
                _ => "",
            };
            return found(runtime, base);
        }
        if let Some(name) = base.strip_prefix("lxc.payload.") {
            return found("lxc", name);
        }
        // Proxmox, and LXC before 4.0.
        if above == "lxc" && part != "ns" {
            return found("lxc", base);
        }
        let machine = part
            .strip_prefix("systemd-nspawn@")
            .and_then(|it| it.strip_suffix(".service"));
        if let Some(name) = machine {
            return found("nspawn", &unescaped(name));
        }
        if let Some(name) = part.strip_prefix("machine-").filter(|_| base != part) {
            let name = unescaped(name.strip_suffix(".scope").unwrap_or(name));
            // machined has virtual machines too, by the name of their driver.
            if let Some(name) = name.strip_prefix("lxc-") {
                let name = name.split_once('-').map_or(name, |(_, name)| name);
                return found("libvirt-lxc", name);
            }
            return match name.starts_with("qemu-") {
                true => None,
                false => found("nspawn", &name),
            };
        }
        above = part;
    }
    None
}

impl Container {
    /// Whether a user made it.
    pub(crate) fn is_users(&self) -> bool {
        user_of(&self.path).is_some()
    }

    /// The container with the name that its runtime has for it.
    pub(crate) fn named(self, name: Option<&str>) -> Thing {
        let short = match is_id(&self.id) {
            true => &self.id[..12],
            false => &self.id,
        };
        let name = name.unwrap_or(short);
        let names = vec![name.to_string(), self.id.clone(), short.to_string()];
        // containerd's own programs make cgroups with a container's name in them; the bare id is an older
        // way.
        let runtime = match self.runtime {
            "" => "containerd",
            runtime => runtime,
        };
        let labels = [("name", name), ("runtime", runtime), ("id", &self.id)];
        Thing::new(self.path.clone(), names, &labels)
    }
}

/// Whether this is a container's id: 64 hexadecimal digits.
fn is_id(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|b| b.is_ascii_hexdigit())
}

/// A unit's name without systemd's escapes (`\x2d` is `-`, `-` is `/`); a `/` stays a `-`.
fn unescaped(name: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = name.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let code = after
            .strip_prefix(b"x")
            .and_then(|it| it.get(..2))
            .filter(|_| first == b'\\');
        let byte = code
            .and_then(|it| std::str::from_utf8(it).ok())
            .and_then(|it| u8::from_str_radix(it, 16).ok());
        bytes.push(byte.unwrap_or(first));
        rest = if byte.is_some() { &after[3..] } else { after };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The pod of a cgroup's path, by the names that the kubelet gives to pods' cgroups.
pub(crate) fn pod(path: &str) -> Option<Thing> {
    let mut within = false;
    let mut qos = "guaranteed";
    for (part, up_to) in components(path) {
        // containerd without systemd: the slice's name is a part of the container's.
        let part = part.split(':').next().unwrap_or(part);
        let base = part.strip_suffix(".slice").unwrap_or(part);
        within |=
            base == "kubepods" || base.ends_with("-kubepods") || base.starts_with("kubepods-");
        if !within {
            continue;
        }
        for (name, shown) in [("besteffort", "best-effort"), ("burstable", "burstable")] {
            if base == name || base.contains(&format!("kubepods-{name}")) {
                qos = shown;
            }
        }
        // `pod` stands at the beginning, or behind the names of the slices above.
        let id = base
            .rsplit_once("-pod")
            .map_or(base.strip_prefix("pod"), |it| Some(it.1));
        if let Some(uid) = id.map(|it| it.replace('_', "-")).filter(|it| is_uid(it)) {
            let names = vec![uid.clone()];
            let labels = [("uid", uid.as_str()), ("qos", qos)];
            let mut pod = Thing::new(up_to.to_string(), names, &labels);
            if qos == "best-effort" {
                pod.class = TenantClass::Batch;
            }
            return Some(pod);
        }
    }
    None
}

/// Whether this is a pod's uid: a UUID, or of a static pod 32 hexadecimal digits.
fn is_uid(text: &str) -> bool {
    let digits = text.bytes().filter(|it| *it != b'-');
    digits.clone().count() == 32
        && matches!(text.len(), 32 | 36)
        && digits.into_iter().all(|it| it.is_ascii_hexdigit())
}

/// The program that runs a virtual machine, by the name of the file; `None` of any other program.
fn vmm(exe: &[u8]) -> Option<&'static str> {
    let name = exe.rsplit(|&b| b == b'/').next().unwrap_or(exe);
    let is = |program: &[u8], variant: &[u8]| name == program || name.starts_with(variant);
    match name {
        _ if qemu::is_qemu(exe) => Some("qemu"),
        _ if is(b"cloud-hypervisor", b"cloud-hypervisor-") => Some("cloud-hypervisor"),
        // Releases have the version in the name.
        _ if is(b"firecracker", b"firecracker-v") => Some("firecracker"),
        b"crosvm" => Some("crosvm"),
        _ => None,
    }
}

/// Whether a program runs a virtual machine.
pub(crate) fn is_vmm(exe: &[u8]) -> bool {
    vmm(exe).is_some()
}

/// Whether a process is about to run a virtual machine: libvirt puts a process of its own into the machine's
/// scope, and only then the process becomes QEMU.
pub(crate) fn becomes_vm(exe: &[u8], path: &str) -> bool {
    let name = exe.rsplit(|&b| b == b'/').next().unwrap_or(exe);
    let is_libvirt = name == b"libvirtd" || name == b"virtqemud";
    is_libvirt && components(path).any(|(part, _)| part.starts_with(r"machine-qemu\x2d"))
}

/// The virtual machine that a process runs, by its program and arguments. `leader` is its first process:
/// names are given by whoever starts a machine, and need not be unique.
pub(crate) fn vm(leader: u32, exe: &[u8], cmdline: &[u8]) -> Option<Thing> {
    let vmm = vmm(exe).filter(|it| *it != "qemu" || qemu::has_machine(cmdline))?;
    let by_socket = |option| argument(cmdline, option).and_then(|it| socket_name(&it));
    let name = match vmm {
        "qemu" => qemu::guest_name(cmdline),
        "cloud-hypervisor" => by_socket("--api-socket").or_else(|| by_socket("--event-monitor")),
        "firecracker" => argument(cmdline, "--id"),
        _ => argument(cmdline, "--name")
            .or_else(|| by_socket("--socket"))
            .or_else(|| by_socket("-s")),
    };
    let uuid = match vmm {
        "qemu" => qemu::uuid(cmdline).unwrap_or_default(),
        _ => String::new(),
    };
    let name = name.filter(|it| !it.is_empty());
    let name = name.unwrap_or_else(|| format!("{vmm}-{leader}"));
    let labels = [("name", name.as_str()), ("vmm", vmm), ("uuid", &uuid)];
    Some(Thing::new(leader.to_string(), vec![name.clone()], &labels))
}

/// The value of an option, given as the next argument or behind `=`.
fn argument(cmdline: &[u8], option: &str) -> Option<String> {
    let mut all = cmdline.split(|&b| b == 0);
    while let Some(given) = all.next() {
        let Some(rest) = given.strip_prefix(option.as_bytes()) else {
            continue;
        };
        let value = match rest.split_first() {
            None => all.next()?,
            Some((b'=', value)) => value,
            Some(_) => continue,
        };
        return Some(String::from_utf8_lossy(value).into_owned());
    }
    None
}

/// The name of a machine by the path of a socket that is made for it: the file's name, or that of its folder
/// where all machines' sockets have the same name (Kata Containers). `path=` may stand before it (Cloud
/// Hypervisor); an open file (`fd=`, as libvirt passes it) tells nothing.
fn socket_name(value: &str) -> Option<String> {
    let value = value.split(',').next().unwrap_or(value);
    let path = value.strip_prefix("path=").unwrap_or(value);
    if path.starts_with("fd=") {
        return None;
    }
    let mut parts = path.rsplit('/');
    let file = parts.next()?;
    let name = match file {
        "clh-api.sock" => parts.next()?,
        _ => file
            .trim_end_matches(".sock")
            .trim_end_matches("-event-monitor-fifo"),
    };
    Some(name.to_string()).filter(|it| !it.is_empty())
}

/// The cgroup of a path that a glob matches first, from the root on, and what its wildcards stand for.
pub(crate) fn cgroup(path: &str, matches: impl Fn(&str) -> bool) -> Option<Thing> {
    let (part, up_to) =
        components(path).find(|(_, up_to)| matches(up_to.trim_start_matches('/')))?;
    let shown = up_to.trim_start_matches('/');
    let labels = [("cgroup", part), ("path", shown)];
    Some(Thing::new(
        up_to.to_string(),
        vec![shown.to_string()],
        &labels,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
    const UID: &str = "b1c2d3e4-0011-2233-4455-66778899aabb";

    fn label<'a>(thing: &'a Option<Thing>, label: &str) -> &'a str {
        let thing = thing.as_ref();
        thing
            .and_then(|it| it.labels.get(label))
            .map_or("", |it| it)
    }

    #[test]
    fn units_by_the_paths_that_systemd_makes() {
        for (path, name, slice, user) in [
            (
                "/system.slice/nginx.service",
                "nginx.service",
                "system.slice",
                "",
            ),
            (
                "/system.slice/nginx.service/worker/1",
                "nginx.service",
                "system.slice",
                "",
            ),
            (
                "/system.slice/system-getty.slice/getty@tty1.service",
                "getty@tty1.service",
                "system-getty.slice",
                "",
            ),
            ("/init.scope", "init.scope", "", ""),
            (
                "/user.slice/user-1000.slice/session-3.scope",
                "session-3.scope",
                "user-1000.slice",
                "1000",
            ),
            (
                "/user.slice/user-1000.slice/user@1000.service/init.scope",
                "user@1000.service",
                "user-1000.slice",
                "1000",
            ),
            (
                "/user.slice/user-1000.slice/user@1000.service/app.slice/web.service",
                "web.service",
                "user-1000.slice",
                "1000",
            ),
            (
                "/user.slice/user-1000.slice/user@1000.service",
                "user@1000.service",
                "user-1000.slice",
                "1000",
            ),
            // What is in a container is the container's, not the host's.
            (
                &format!("/system.slice/docker-{ID}.scope/system.slice/a.service"),
                &format!("docker-{ID}.scope"),
                "system.slice",
                "",
            ),
            (
                r"/machine.slice/machine-qemu\x2d1\x2dweb.scope/libvirt/vcpu0",
                r"machine-qemu\x2d1\x2dweb.scope",
                "machine.slice",
                "",
            ),
        ] {
            let found = unit(path);
            let got = (
                label(&found, "unit"),
                label(&found, "slice"),
                user_of(path).unwrap_or(""),
            );
            assert_eq!(got, (name, slice, user), "{path}");
        }
        for none in [
            "/",
            "",
            "/docker/x",
            "/system.slice",
            "/kubepods.slice",
            "/lxc.payload.a/system.slice/x.service",
        ] {
            assert_eq!(unit(none), None, "{none}");
        }
        let names = unit("/system.slice/nginx.service").unwrap().names;
        assert_eq!(names, ["nginx.service", "nginx"]);
    }

    #[test]
    fn containers_by_the_paths_that_runtimes_make() {
        let user = "/user.slice/user-1000.slice/user@1000.service/user.slice";
        for (path, runtime, id) in [
            // systemd's driver, and the other; cgroup v2 and v1 alike.
            (format!("/system.slice/docker-{ID}.scope"), "docker", ID),
            (format!("/docker/{ID}"), "docker", ID),
            (format!("/docker/{ID}/init.scope"), "docker", ID),
            (format!("{user}/docker-{ID}.scope"), "docker", ID),
            (
                format!("/machine.slice/libpod-{ID}.scope/container"),
                "podman",
                ID,
            ),
            (
                format!("/machine.slice/machine-libpod_pod_{ID}.slice/libpod-{ID}.scope"),
                "podman",
                ID,
            ),
            (format!("/libpod_parent/libpod-{ID}"), "podman", ID),
            (format!("{user}/libpod-{ID}.scope/container"), "podman", ID),
            (
                format!("/system.slice/web.service/libpod-payload-{ID}"),
                "podman",
                ID,
            ),
            (
                format!("/system.slice/nerdctl-{ID}.scope"),
                "containerd",
                ID,
            ),
            (
                format!(
                    "/kubepods.slice/kubepods-pod{}.slice/cri-containerd-{ID}.scope",
                    UID.replace('-', "_")
                ),
                "containerd",
                ID,
            ),
            (
                format!("/kubepods/burstable/pod{UID}/{ID}"),
                "containerd",
                ID,
            ),
            (
                format!("/kubepods.slice/kubepods-pod7.slice/crio-{ID}.scope/container"),
                "cri-o",
                ID,
            ),
            (
                format!(
                    "/system.slice/containerd.service/kubepods-besteffort-pod7.slice:cri-containerd:{ID}"
                ),
                "containerd",
                ID,
            ),
            (
                "/lxc.payload.web/system.slice/nginx.service".into(),
                "lxc",
                "web",
            ),
            ("/lxc/101/ns/init.scope".into(), "lxc", "101"),
            ("/lxc/web".into(), "lxc", "web"),
            (
                "/machine.slice/systemd-nspawn@deb\\x2d13.service/payload".into(),
                "nspawn",
                "deb-13",
            ),
            (
                "/machine.slice/machine-deb.scope/payload".into(),
                "nspawn",
                "deb",
            ),
            (
                "/machine.slice/machine-lxc\\x2d77\\x2dweb.scope".into(),
                "libvirt-lxc",
                "web",
            ),
            (
                format!("/docker/{ID}/docker/{}", ID.replace('0', "f")),
                "docker",
                ID,
            ),
        ] {
            let found = container(&path).unwrap_or_else(|| panic!("{path}"));
            assert_eq!((found.runtime, found.id.as_str()), (runtime, id), "{path}");
            let further = container(&format!("{path}/further/down")).unwrap();
            assert_eq!(further.path, found.path, "all below is one container");
        }
        for none in [
            "/".to_string(),
            "/system.slice/nginx.service".into(),
            format!("/machine.slice/libpod-conmon-{ID}.scope"),
            format!("/system.slice/crio-conmon-{ID}.scope"),
            "/lxc.monitor.web".into(),
            "/lxc.monitor/101".into(),
            "/docker".into(),
            "/docker/buildx".into(),
            r"/machine.slice/machine-qemu\x2d1\x2dweb.scope/libvirt/vcpu0".into(),
        ] {
            assert_eq!(container(&none), None, "{none}");
        }
        let thing = container(&format!("/docker/{ID}"))
            .unwrap()
            .named(Some("web"));
        assert_eq!(thing.names, ["web", ID, &ID[..12]]);
        let nameless = container(&format!("/docker/{ID}")).unwrap().named(None);
        assert_eq!(nameless.labels["name"], ID[..12]);
    }

    #[test]
    fn pods_by_the_paths_that_the_kubelet_makes() {
        let escaped = UID.replace('-', "_");
        for (path, qos) in [
            (
                format!(
                    "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{escaped}.slice/cri-containerd-{ID}.scope"
                ),
                "burstable",
            ),
            (
                format!(
                    "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{escaped}.slice/crio-{ID}.scope"
                ),
                "best-effort",
            ),
            (
                format!("/kubepods.slice/kubepods-pod{escaped}.slice/cri-containerd-{ID}.scope"),
                "guaranteed",
            ),
            (format!("/kubepods/burstable/pod{UID}/{ID}"), "burstable"),
            (format!("/kubepods/besteffort/pod{UID}/{ID}"), "best-effort"),
            (format!("/kubepods/pod{UID}/{ID}"), "guaranteed"),
            // Nodes that are containers themselves (kind), and a kubelet with `--cgroup-root`.
            (
                format!(
                    "/docker/{ID}/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/kubelet-kubepods-burstable-pod{escaped}.slice/x"
                ),
                "burstable",
            ),
            (format!("/node/kubepods/besteffort/pod{UID}"), "best-effort"),
            (
                format!(
                    "/system.slice/containerd.service/kubepods-besteffort-pod{escaped}.slice:cri-containerd:{ID}"
                ),
                "best-effort",
            ),
        ] {
            let found = pod(&path);
            assert_eq!(
                (label(&found, "uid"), label(&found, "qos")),
                (UID, qos),
                "{path}"
            );
            let class = found.unwrap().class;
            assert_eq!(class == TenantClass::Batch, qos == "best-effort");
        }
        let static_pod = UID.replace('-', "");
        let path = format!(
            "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{static_pod}.slice"
        );
        assert_eq!(label(&pod(&path), "uid"), static_pod);
        for none in [
            "/kubepods.slice/kubepods-burstable.slice",
            "/system.slice/pod7.service",
            "/kubepods/podx",
            "/",
            &format!("/other/pod{UID}"),
        ] {
            assert_eq!(pod(none), None, "{none}");
        }
    }

    #[test]
    fn machines_by_program_and_arguments() {
        let qemu = "/usr/bin/qemu-system-x86_64";
        let hypervisor = "/usr/bin/cloud-hypervisor";
        for (exe, line, vmm, name, uuid) in [
            (
                qemu,
                "qemu -name guest=web,debug-threads=on -uuid 6f0d",
                "qemu",
                "web",
                "6f0d",
            ),
            (
                qemu,
                "qemu -id 100 -name db,debug-threads=on",
                "qemu",
                "db",
                "",
            ),
            (qemu, "qemu -S", "qemu", "qemu-7", ""),
            (
                hypervisor,
                "ch --api-socket path=/run/a.sock",
                "cloud-hypervisor",
                "a",
                "",
            ),
            (
                "/opt/cloud-hypervisor-static",
                "ch --api-socket=/run/b.sock",
                "cloud-hypervisor",
                "b",
                "",
            ),
            // Kata Containers, and libvirt.
            (
                hypervisor,
                "ch --api-socket /run/vc/vm/c1/clh-api.sock",
                "cloud-hypervisor",
                "c1",
                "",
            ),
            (
                hypervisor,
                "ch --api-socket fd=22 --event-monitor path=/run/d-event-monitor-fifo",
                "cloud-hypervisor",
                "d",
                "",
            ),
            (
                hypervisor,
                "ch --api-socket fd=22",
                "cloud-hypervisor",
                "cloud-hypervisor-7",
                "",
            ),
            (
                "/firecracker",
                "/firecracker --id fn-1 --start-time-us 3",
                "firecracker",
                "fn-1",
                "",
            ),
            (
                "/opt/firecracker-v1.12.0-x86_64",
                "fc --id=x",
                "firecracker",
                "x",
                "",
            ),
            (
                "/usr/bin/crosvm",
                "crosvm run --name x -m 2",
                "crosvm",
                "x",
                "",
            ),
            (
                "/usr/bin/crosvm",
                "crosvm run -s /tmp/y.sock",
                "crosvm",
                "y",
                "",
            ),
        ] {
            let line = line.replace(' ', "\0");
            let found = vm(7, exe.as_bytes(), line.as_bytes());
            let labels = ["vmm", "name", "uuid"].map(|it| label(&found, it));
            assert_eq!(labels, [vmm, name, uuid], "{line}");
            assert_eq!(found.unwrap().id, "7", "names need not be unique");
        }
        for other in [
            "/usr/bin/less",
            "/usr/bin/qemu-img",
            "/usr/bin/firecracker-containerd",
            "/x/cloud-hypervisor2",
        ] {
            assert_eq!(
                vm(7, other.as_bytes(), b"x\0--name\0y\0--id\0z"),
                None,
                "{other}"
            );
        }
    }

    #[test]
    fn what_a_user_made_is_told_apart() {
        for (path, user) in [
            ("/user.slice/user-1000.slice/session-3.scope", Some("1000")),
            (
                "/user.slice/user-0.slice/user@0.service/system.slice/db.service",
                Some("0"),
            ),
            (
                "/user.slice/user-1000.slice/user@1000.service/kubepods/pod7",
                Some("1000"),
            ),
            ("/user.slice", None),
            ("/system.slice/db.service", None),
            ("/system.slice/db.service/user-1000.slice", None),
            ("/user.slice/user-x.slice/a.scope", None),
        ] {
            assert_eq!(user_of(path), user, "{path}");
        }
        // A user names the slices of his own manager.
        let path = "/user.slice/user-1000.slice/user@1000.service/system.slice/db.service";
        assert_eq!(label(&unit(path), "slice"), "user-1000.slice");
        // A folder of a user's with a pod's uid is not the pod.
        let [real, made] = ["", "/user.slice/user-1000.slice/user@1000.service"]
            .map(|above| pod(&format!("{above}/kubepods/pod{UID}")).unwrap());
        assert_ne!(real.id, made.id);
    }

    #[test]
    fn a_cgroup_is_the_first_on_the_way_down_that_matches() {
        let matches = |path: &str| path.starts_with("qemu.slice/") && path.ends_with(".scope");
        let found = cgroup("/qemu.slice/100.scope/emulator.scope", matches).unwrap();
        assert_eq!(found.labels["cgroup"], "100.scope");
        assert_eq!(found.labels["path"], "qemu.slice/100.scope");
        assert_eq!(cgroup("/qemu.slice", matches), None);
    }

    proptest! {
        #[test]
        fn arbitrary_paths_and_arguments_never_panic(path: String, exe: Vec<u8>, cmdline: Vec<u8>) {
            let _ = (unit(&path), container(&path).map(|it| it.named(None)), pod(&path));
            vm(1, &exe, &cmdline);
            unescaped(&path);
            cgroup(&path, |_| true);
        }

        /// Every process of a thing has the thing's id, however deep it is, and the id is a part of its path.
        #[test]
        fn all_below_a_thing_is_the_thing(
            above in "(/[a-z]{1,5}\\.slice){0,2}",
            own in prop_oneof![
                "/[a-z]{1,5}\\.service", "/docker-[0-9a-f]{64}\\.scope", "/lxc\\.payload\\.[a-z]{1,5}",
            ],
            below in "(/[a-z]{1,5}){0,3}",
        ) {
            let named = |path: &str| container(path).map(|it| it.named(None));
            for source in [unit as fn(&str) -> Option<Thing>, named] {
                let at = source(&format!("{above}{own}"));
                let deep = source(&format!("{above}{own}{below}"));
                prop_assert_eq!(&at, &deep);
                if let Some(thing) = at {
                    prop_assert_eq!(thing.id, format!("{}{}", above, own));
                }
            }
        }
    }
}

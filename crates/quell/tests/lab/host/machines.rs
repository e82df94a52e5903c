//! Virtual machines of libvirt, and one that was started by hand; emulated, as there is no KVM in the guest.

use super::watch::watched;

const RULES: &str = r#"
[[tenants]]
each = "vm"
match = "d?"
class = "batch"
[[tenants]]
each = "vm"
[[tenants]]
each = "unit"
"#;

/// What the packages' scripts would have made is made first. The machines have no disk, and stay in their
/// firmware.
const SCRIPT: &str = r#"
for name in libvirt:x:900: kvm:x:901: libvirt-qemu:x:902:; do echo $name >> /etc/group; done
echo libvirt-qemu:x:902:902::/var/lib/libvirt:/usr/sbin/nologin >> /etc/passwd
printf 'user = "root"\ngroup = "root"\nsecurity_driver = "none"\n' > /etc/libvirt/qemu.conf
systemctl start libvirtd.service
for name in web db; do
    cat > $name.xml <<END
<domain type="qemu"><name>$name</name><memory unit="MiB">32</memory><vcpu>2</vcpu>
<os><type arch="x86_64" machine="q35">hvm</type></os></domain>
END
    virsh -q create $name.xml > /dev/null 2> $name.log || cat $name.log
done
qemu-system-x86_64 -name plain,debug-threads=on -machine microvm -accel tcg -m 16 -display none -nodefaults &
plain=$!
await eval 'grep -qs TCG /proc/$plain/task/*/comm'
web=$(cat /run/libvirt/qemu/web.pid); db=$(cat /run/libvirt/qemu/db.pid)
cut -d: -f3 /proc/$web/cgroup
sleep 0.5; at steady
for name in web db plain; do quell explain --json --socket /run/q.sock $name > $OUT/$name.json; done
for name in web db plain; do eval kill -9 \$$name; at left $name; sleep 0.3; done
"#;

#[test]
fn machines_of_libvirt_and_a_qemu_of_its_own_are_tenants() {
    let packages = [
        "libvirt-clients",
        "libvirt-daemon",
        "libvirt-daemon-driver-qemu",
        "qemu-system-x86",
        "systemd-container",
    ];
    let Some(watched) = watched(&packages, RULES, SCRIPT) else {
        return;
    };
    let said: Vec<&str> = watched.said.lines().collect();
    let scope = r"/machine.slice/machine-qemu\x2d1\x2dweb.scope/libvirt/emulator";
    assert_eq!(said, [scope, "SIGTERM: 0"]);
    for (name, class, vcpus) in [
        ("web", "latency", 2),
        ("db", "batch", 2),
        ("plain", "latency", 1),
    ] {
        let tenant = watched.tenant(name, "steady");
        assert_eq!(tenant["labels"]["vmm"], "qemu", "{tenant}");
        assert_eq!(tenant["class"], class, "{tenant}");
        assert_eq!(tenant["kind"], "vm", "{tenant}");
        // The machine's virtual CPUs, and QEMU's own.
        assert!(tenant["threads"].as_u64().unwrap() > vcpus, "{tenant}");
        watched.is_gone(name, &format!("left {name}"));
    }
    // Neither the QEMUs that libvirt asks what they can do, nor a machine's scope before it has a QEMU.
    let ever: Vec<&str> = watched.ever("vm").into_iter().collect();
    assert_eq!(ever, ["db", "plain", "web"]);
    let units = watched.ever("unit");
    assert!(units.contains("libvirtd.service"), "{units:?}");
    assert_eq!(
        units.into_iter().find(|it| it.starts_with("machine-")),
        None
    );
}

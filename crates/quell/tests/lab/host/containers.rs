//! Containers of podman, with both drivers for cgroups, of LXC, docker and containerd.

use super::watch::{Watched, watched};

const RULES: &str = r#"
[[tenants]]
each = "container"
match = "job"
class = "batch"
[[tenants]]
each = "container"
[[tenants]]
each = "unit"
"#;

const SCRIPT: &str = r#"
box /root/box
tar -C /root/box -c . | podman import - box > /dev/null 2>&1
podman run -d --name web --network none box two > /dev/null
podman --cgroup-manager cgroupfs run -d --rm --name job --network none box two > /dev/null
mkdir -p /var/lib/lxc/guest; cp -a /root/box /var/lib/lxc/guest/rootfs
cat > /var/lib/lxc/guest/config <<END
lxc.rootfs.path = dir:/var/lib/lxc/guest/rootfs
lxc.init.cmd = /bin/two
lxc.net.0.type = empty
lxc.apparmor.profile = unconfined
END
lxc-start -n guest
web=$(podman inspect -f '{{.State.Pid}}' web); job=$(podman inspect -f '{{.State.Pid}}' job)
guest=$(lxc-info -n guest -pH)
for pid in $web $job $guest; do sed 's/[0-9a-f]\{64\}/ID/' /proc/$pid/cgroup; done
sleep 0.5; at steady
for name in web job guest; do eval kill -9 \$$name; at left $name; sleep 0.3; done
"#;

#[test]
fn containers_of_podman_and_lxc_are_tenants() {
    let Some(watched) = watched(&["crun", "lxc", "podman"], RULES, SCRIPT) else {
        return;
    };
    let said: Vec<&str> = watched.said.lines().collect();
    let expected = [
        "0::/machine.slice/libpod-ID.scope/container",
        "0::/libpod_parent/libpod-ID",
        "0::/lxc.payload.guest",
        "SIGTERM: 0",
    ];
    assert_eq!(said, expected);
    let expected = [
        ("web", "podman", "latency"),
        ("job", "podman", "batch"),
        ("guest", "lxc", "latency"),
    ];
    are_tenants(&watched, &expected);
}

/// What docker's package would have made is made first.
const DOCKER: &str = r#"
box /root/box
echo docker:x:900: >> /etc/group; mkdir -p /etc/docker
echo '{"storage-driver":"vfs","bridge":"none","iptables":false,"ip6tables":false}' > /etc/docker/daemon.json
systemctl start containerd.service docker.service
tar -C /root/box -c . | docker import - box > /dev/null
docker run -d --name web --network none box two > /dev/null
docker run -d --rm --cgroup-parent batch.slice --name job --network none box two > /dev/null
id=$(printf 'ab%.0s' $(seq 32))
ctr run -d --rootfs /root/box $id /bin/two
web=$(docker inspect -f '{{.State.Pid}}' web); job=$(docker inspect -f '{{.State.Pid}}' job)
abababababab=$(ctr task ls | sed -n "s/^$id *\([0-9]*\).*/\1/p")
for pid in $web $job $abababababab; do sed 's/[0-9a-f]\{64\}/ID/' /proc/$pid/cgroup; done
sleep 0.5; at steady
for name in web job abababababab; do eval kill -9 \$$name; at left $name; sleep 0.3; done
"#;

#[test]
fn containers_of_docker_and_containerd_are_tenants() {
    let Some(watched) = watched(&["docker-cli", "docker.io"], RULES, DOCKER) else {
        return;
    };
    let said: Vec<&str> = watched.said.lines().collect();
    let expected = [
        "0::/system.slice/docker-ID.scope",
        "0::/batch.slice/docker-ID.scope",
        "0::/default/ID",
        "SIGTERM: 0",
    ];
    assert_eq!(said, expected);
    // `ctr` gives no names; containerd's containers have the beginning of their id.
    let expected = [
        ("web", "docker", "latency"),
        ("job", "docker", "batch"),
        ("abababababab", "containerd", "latency"),
    ];
    are_tenants(&watched, &expected);
}

/// Each of these containers, by name, runtime and class, was one tenant of two threads, and gone after it.
fn are_tenants(watched: &Watched, expected: &[(&str, &str, &str)]) {
    for (name, runtime, class) in expected {
        let tenant = watched.tenant(name, "steady");
        assert_eq!(tenant["labels"]["runtime"], *runtime, "{tenant}");
        assert_eq!(tenant["class"], *class, "{tenant}");
        assert_eq!(tenant["kind"], "container", "{tenant}");
        assert_eq!(tenant["threads"], 2, "{tenant}");
        watched.is_gone(name, &format!("left {name}"));
    }
    // Nothing was a tenant twice, or by another name for a while.
    let names = expected.iter().map(|it| it.0).collect();
    assert_eq!(watched.ever("container"), names);
    let units = watched.ever("unit");
    let wrong = |it: &&str| it.contains("libpod") || it.starts_with("docker-");
    assert_eq!(units.into_iter().find(wrong), None);
}

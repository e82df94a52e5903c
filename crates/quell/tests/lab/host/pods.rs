//! Pods as the kubelet's two drivers make them, and a hundred units that come and go.

use super::watch::watched;

const RULES: &str = r#"
[[tenants]]
each = "pod"
[[tenants]]
each = "container"
[[tenants]]
each = "unit"
"#;

/// With systemd's driver a pod is a slice, and its containers are scopes in it; with the other driver all are
/// folders.
const PODS: &str = r#"
hex() { printf "$1%.0s" $(seq 64); }
uid() { echo $1$1$1$1$1$1$1$1-0000-4000-8000-000000000000; }
scope() { # SLICE CONTAINER
    systemd-run --quiet --scope -p Delegate=yes --slice=$1.slice --unit=cri-containerd-$2.scope sh -c 'sleep 1000 & wait' &
}
folder() { # FOLDER: a container in it
    mkdir -p /sys/fs/cgroup/$1
    sh -c 'echo $$ > /sys/fs/cgroup/'$1'/cgroup.procs; sleep 1000 & wait' &
}
scope kubepods-besteffort-pod$(uid 1 | tr - _) $(hex a)
scope kubepods-besteffort-pod$(uid 1 | tr - _) $(hex b)
scope kubepods-burstable-pod$(uid 2 | tr - _) $(hex c)
scope kubepods-pod$(uid 3 | tr - _) $(hex d)
folder kubepods/besteffort/pod$(uid 4)/$(hex e)
folder kubepods/burstable/pod$(uid 5)/$(hex f)
folder kubepods/pod$(uid 6)/$(hex 0)
pods() { find /sys/fs/cgroup/kubepods* -name '*pod[0-9]*' -type d | wc -l; }
await eval '[ $(pods) = 6 ]'
sleep 1; at steady
for folder in /sys/fs/cgroup/kubepods*; do
    find $folder -name cgroup.procs | xargs cat | xargs kill -9
done
at left; sleep 0.5
"#;

/// Each unit says itself when it began, and when it ends.
const UNITS: &str = r#"
mkdir /root/came /root/left
cat > /root/unit <<'END'
read -r s rest < /proc/uptime; echo $s $1 > /root/came/$1; sleep 0.6
read -r s rest < /proc/uptime; echo $s $1 > /root/left/$1
END
for number in $(seq 100); do
    systemd-run --quiet --unit=t$number.service sh /root/unit t$number
    sleep 0.0$((number % 7 + 1))
done
await eval 'status | grep -c t100.service > /dev/null'; sleep 1
cat /root/came/* > $OUT/came; cat /root/left/* > $OUT/left
"#;

#[test]
#[ignore = "a minute and a half; nightly"]
fn pods_and_units_come_and_go() {
    let Some(watched) = watched(&[], RULES, &[PODS, UNITS].concat()) else {
        return;
    };
    let said: Vec<&str> = watched.said.lines().collect();
    assert_eq!(said, ["SIGTERM: 0"]);
    let uid = |number: usize| {
        format!(
            "{}-0000-4000-8000-000000000000",
            number.to_string().repeat(8)
        )
    };
    let kinds = [
        ("best-effort", "batch"),
        ("burstable", "latency"),
        ("guaranteed", "latency"),
    ];
    for (number, (qos, class)) in (1..=6).zip(kinds.iter().cycle()) {
        let tenant = watched.tenant(&uid(number), "steady");
        assert_eq!(tenant["labels"]["qos"], *qos, "{tenant}");
        assert_eq!(tenant["class"], *class, "{tenant}");
        // The first pod has two containers.
        let threads = if number == 1 { 4 } else { 2 };
        assert_eq!(tenant["threads"], threads, "{tenant}");
        watched.is_gone(&uid(number), "left");
    }
    let ever: Vec<String> = watched
        .ever("pod")
        .into_iter()
        .map(str::to_string)
        .collect();
    assert_eq!(ever, (1..=6).map(uid).collect::<Vec<String>>());
    assert!(watched.ever("container").is_empty());
    let units = watched.ever("unit");
    assert!(!units.iter().any(|it| it.contains("cri-")), "{units:?}");

    let times = |name: &str| -> Vec<(String, f64)> {
        let text = std::fs::read_to_string(watched.folder.path().join(name)).unwrap();
        let lines = text.lines().map(|line| line.split_once(' ').unwrap());
        let mut all: Vec<_> = lines
            .map(|it| (it.1.to_string(), it.0.parse().unwrap()))
            .collect();
        all.sort_by(|one, other| one.0.cmp(&other.0));
        all
    };
    let (came, left) = (times("came"), times("left"));
    assert_eq!((came.len(), left.len()), (100, 100));
    let took = came
        .iter()
        .zip(left)
        .map(|((name, came), (_, left))| watched.took(&format!("{name}.service"), *came, left));
    let (mut seen, mut gone): (Vec<f64>, Vec<f64>) = took.unzip();
    for (what, all, bound) in [("seen", &mut seen, 0.2), ("gone", &mut gone, 1.0)] {
        all.sort_by(f64::total_cmp);
        println!("{what}: median {:.2} s, worst {:.2} s", all[50], all[99]);
        assert!(all[99] <= bound, "{what}: {all:?}");
    }
}

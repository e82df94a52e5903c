//! Tenants that come and go all the time, under an agent that acts.
//!
//! `QUELL_CHURN_MINUTES` says for how long, in the guest's time; 12 s unless it is set.

use crate::agent::{in_guest, json};
use std::collections::BTreeSet;

/// 200 tenants in each minute, each a cgroup with processes that live for 2 s, beside two that stay.
const CHURN: &str = r#"
cg=/sys/fs/cgroup/system.slice; mkdir -p $cg; echo +cpu > $cg/cgroup.subtree_control
cat > quell.toml <<EOF
[agent]
policy = ["latency", "share"]
backend = "$BACKEND"
guard = "off"
[asymmetry]
slices = true
latencies = true
[[tenants]]
each = "unit"
match = "batch-*"
class = "batch"
weight = 50
[[tenants]]
each = "unit"
weight = 200
EOF
cat > tenant <<'EOF'
echo $$ > $1/cgroup.procs
for turn in 1 2 3 4 5 6 7 8 9 10; do
    i=0; while [ $i -lt 500 ]; do i=$((i + 1)); done
    sleep 0.2
done
EOF
hundredths() { read -r s rest < /proc/uptime; echo ${s%.*}${s#*.}; }
tenant() { mkdir $cg/$1; sh tenant $cg/$1; rmdir $cg/$1; }
status() { quell status --json --socket /run/q.sock; }
await() { for turn in $(seq 900); do "$@" && return; sleep 0.1; done; echo "not in time: $*"; cat $OUT/agent.log; exit 1; }
rss() { sed -n 's/^VmRSS:[^0-9]*\([0-9]*\) kB/\1/p' /proc/$agent/status; }
settings() {
    cat $cg/stay.service/cpu.weight; cut -d' ' -f19 /proc/$stay/stat; grep allowed_list /proc/$stay/status
}
mkdir $cg/other.service $cg/stay.service
sh -c 'while :; do sleep 1; done' & other=$!; echo $other > $cg/other.service/cgroup.procs
sh -c 'while :; do sleep 1; done' & stay=$!; echo $stay > $cg/stay.service/cgroup.procs
settings > $OUT/before
quell run -c quell.toml --socket /run/q.sock --journal /root/journal > $OUT/agent.log 2>&1 & agent=$!
[ $BACKEND = stock ] || await grep -q enabled /sys/kernel/sched_ext/state
await eval 'status | grep -c "\"name\": \"stay.service\"" > /dev/null' 2> /dev/null
await grep -q 200 $cg/stay.service/cpu.weight
# The agent keeps its last 10,000 decisions, of which the first is one for each new thread.
for batch in $(seq $((FILL / 500))); do
    sh -c 'echo $$ > $1/cgroup.procs; for turn in $(seq 500); do sleep 0.5 & done; wait' - $cg/stay.service
done
status > $OUT/first.json
begin=$(hundredths); number=0
while [ $number -lt $TENANTS ]; do
    number=$((number + 1))
    case $((number % 3)) in 0) name=batch-$number ;; *) name=t$number ;; esac
    tenant $name.service &
    due=$((begin + number * 30 - $(hundredths)))
    if [ $due -ge 10 ]; then sleep 0.$due; elif [ $due -gt 0 ]; then sleep 0.0$due; fi
    [ $((number % (TENANTS / 10))) != 0 ] || rss >> $OUT/rss
done
echo $(($(hundredths) - begin)) > $OUT/took
status > $OUT/busy.json
await eval '[ "$(ls -d $cg/*/ | wc -l)" = 2 ]'; sleep 1
(stat -c %i $cg/*.service; cat $cg/*.service/cgroup.procs) > $OUT/stay
status > $OUT/last.json; cp journal $OUT/journal
kill -TERM $agent; wait $agent; echo "SIGTERM: $?"
settings > $OUT/after
kill $stay $other
"#;

/// The settings that a journal says are not as they were: of threads by id and start, of cgroups by inode.
fn changed(journal: &str) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    for line in journal.lines().skip(1) {
        let words: Vec<&str> = line.split(' ').collect();
        match words[1..] {
            ["thread", tid, start, ..] => drop(all.insert(format!("{tid} {start}"))),
            ["cgroup", inode, ..] => drop(all.insert(inode.to_string())),
            ["drop-thread", tid, start] => drop(all.remove(&format!("{tid} {start}"))),
            ["drop-cgroup", inode] => drop(all.remove(inode)),
            _ => panic!("{line}"),
        }
    }
    all
}

fn churn(backend: &str) {
    let minutes = std::env::var("QUELL_CHURN_MINUTES").ok();
    let minutes = minutes.map(|it| it.parse::<u64>().unwrap());
    let number = minutes.map_or(40, |it| it * 200);
    let fill = minutes.map_or(0, |_| 10_000);
    let head = format!("TENANTS={number}; FILL={fill}; BACKEND={backend}\n");
    let Some((folder, said)) = in_guest(&[&head, CHURN]) else {
        return;
    };
    let folder = folder.path();
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap();
    let numbers = |name: &str| -> Vec<u64> {
        read(name)
            .lines()
            .map(|line| line.parse().unwrap())
            .collect()
    };
    println!("{said}\n{}", read("agent.log"));
    assert_eq!(said, "SIGTERM: 0\n");
    // They came as often as they should have, and each was acted on.
    let took = numbers("took")[0]; // hundredths of a second
    assert!(took < number * 30 + 100, "{took}");
    let [first, busy, last] =
        ["first", "busy", "last"].map(|it| json(folder, &format!("{it}.json")));
    assert_eq!(first["backend"], backend);
    let count = |status: &serde_json::Value, key: &str| status[key].as_u64().unwrap();
    let changes = count(&last, "changes") - count(&first, "changes");
    println!(
        "{changes} changes, {} bytes of journal",
        read("journal").len()
    );
    assert!(changes >= number, "{changes}");
    assert!(busy["tenants"].as_array().unwrap().len() > 5, "{busy}");

    // Nothing is left of them: no tenant, no entry, no setting.
    let tenants = last["tenants"].as_array().unwrap();
    let names: Vec<&str> = tenants
        .iter()
        .filter_map(|it| it["name"].as_str())
        .collect();
    assert_eq!(names, ["other.service", "stay.service"]);
    let stay = read("stay");
    let stay: BTreeSet<&str> = stay.lines().collect();
    let changed = changed(&read("journal"));
    let of_others = |it: &&String| !stay.contains(it.split(' ').next().unwrap());
    let left: Vec<&String> = changed.iter().filter(of_others).collect();
    assert!(left.is_empty(), "{left:?}");
    assert!(!changed.is_empty(), "those that stay are in the journal");
    assert_eq!(read("before"), read("after"));
    assert!(!read("agent.log").contains("more tenants than"));

    // No period was late, and the agent did not grow.
    let overruns = count(&last, "overruns") - count(&first, "overruns");
    let rss = numbers("rss");
    println!("{overruns} overruns; kB after each tenth of the time: {rss:?}");
    assert_eq!(overruns, 0);
    assert_eq!(rss.len(), 10);
    assert!(rss[9] < rss[1] + 1024, "{rss:?}");
}

#[test]
fn hundreds_of_tenants_a_minute_leave_nothing_behind() {
    churn("stock");
}

#[test]
#[ignore = "nightly: the one above has most of it"]
fn hundreds_of_tenants_a_minute_leave_nothing_behind_with_the_scheduler() {
    churn("sched_ext");
}

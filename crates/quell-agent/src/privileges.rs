//! The capabilities that Quell needs, what does not work without each, and those that this process lacks.

use crate::wire::Missing;
use quell_model::config::{AgentFile, AgentTenant, Each, TenantRule};
use quell_sys::capability::{BPF, Capabilities, DAC_OVERRIDE, PERFMON, SYS_NICE, SYS_PTRACE};
use std::fs;

/// The effective capabilities of this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Privileges {
    effective: Capabilities,
}

/// How to get capabilities; the way is the same for all of them.
const HOW: &str = "run as root, by the systemd unit, or under \
    `setpriv --inh-caps +CAP --ambient-caps +CAP`";

impl Privileges {
    /// The capabilities of this process; none where the kernel does not say.
    pub fn current() -> Privileges {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        Privileges::from_status(&status)
    }

    fn from_status(status: &str) -> Privileges {
        let effective = Capabilities::from_status(status).unwrap_or(Capabilities(0));
        Privileges { effective }
    }

    fn has(self, capability: u32) -> bool {
        self.effective.has(capability)
    }

    /// Whether other users' threads may be changed at all.
    pub fn may_act(self) -> bool {
        self.has(SYS_NICE)
    }

    /// The capabilities that are missing for these tenants and rules.
    pub fn missing(self, tenants: &[AgentTenant], rules: &[TenantRule]) -> Vec<Missing> {
        let by_exe = tenants
            .iter()
            .any(|t| t.selectors.exe.is_some() || t.selectors.libvirt.is_some());
        let by_exe = by_exe || rules.iter().any(|it| it.finds.each == Each::Vm);
        [
            (BPF, "CAP_BPF", true, "the BPF monitor cannot load, so causes of waits, wakers and preemptions are not seen"),
            (PERFMON, "CAP_PERFMON", true, "the BPF monitor cannot attach to the scheduler's tracepoints"),
            (SYS_NICE, "CAP_SYS_NICE", true, "threads' nice, slice and affinity cannot be changed, so nothing is changed at all"),
            (SYS_PTRACE, "CAP_SYS_PTRACE", by_exe, "other users' executables cannot be read, so `exe` and `libvirt` selectors and rules for virtual machines miss them"),
            (DAC_OVERRIDE, "CAP_DAC_OVERRIDE", true, "cgroups' CPU weights cannot be written, nor containers' names be read, unless root owns this process and them"),
        ]
        .into_iter()
        .filter(|&(number, _, needed, _)| needed && !self.has(number))
        .map(|(_, what, _, without)| Missing {
            what: what.to_string(),
            remedy: format!("{without}; {HOW}").replace("+CAP", &format!("+{}", what[4..].to_lowercase())),
        })
        .collect()
    }
}

/// What this process lacks to serve a configuration's tenants.
pub fn missing_privileges(config: &AgentFile) -> Vec<Missing> {
    Privileges::current().missing(&config.tenants, &config.rules)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(status: &str, tenants: &[AgentTenant]) -> Vec<String> {
        let missing = Privileges::from_status(status).missing(tenants, &[]);
        missing.into_iter().map(|m| m.what).collect()
    }

    #[test]
    fn exactly_the_missing_ones_are_named() {
        let mut by_exe = AgentTenant::named("a");
        by_exe.selectors.exe = Some("nginx".into());
        assert_eq!(
            names("CapEff:\t000001ffffffffff\n", &[by_exe.clone()]),
            [""; 0]
        );
        assert_eq!(
            names("CapEff:\t0000000000000000\n", &[by_exe]),
            [
                "CAP_BPF",
                "CAP_PERFMON",
                "CAP_SYS_NICE",
                "CAP_SYS_PTRACE",
                "CAP_DAC_OVERRIDE"
            ]
        );
        // CAP_SYS_NICE and CAP_DAC_OVERRIDE alone; no tenant is selected by executable.
        assert_eq!(
            names(
                "Name:\tx\nCapEff:\t0000000000800002\n",
                &[AgentTenant::named("a")]
            ),
            ["CAP_BPF", "CAP_PERFMON"]
        );
        let rule = TenantRule::all(Each::Vm);
        let all = Privileges::from_status("").missing(&[], &[rule]);
        assert!(all.iter().any(|it| it.what == "CAP_SYS_PTRACE"), "{all:?}");
        assert!(Privileges::from_status("CapEff:\t0000000000800000").may_act());
        assert!(!Privileges::from_status("nonsense").may_act());
    }

    #[test]
    fn the_remedy_is_a_command_that_names_the_capability() {
        let missing = Privileges::from_status("").missing(&[], &[]);
        assert!(
            missing[0].remedy.contains("--ambient-caps +bpf"),
            "{}",
            missing[0].remedy
        );
    }
}

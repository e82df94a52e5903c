//! Cgroup weights: what the plan wants of them, what is written, and whether it holds.

use super::period::Period;
use crate::act::actuator::Actuator;
use crate::act::cgroup;
use crate::act::journal::{Record, Value};
use crate::act::report::{ApplyReport, Note, RestoreReport, Subject};
use crate::act::state::{self, Cgroup, HandsOff, Setting, hint};
use quell_model::{CgroupPath, TenantPlan, TenantSample, TenantWeight};
use std::io;

impl Actuator {
    /// Plans the weight of a tenant's cgroup.
    pub(super) fn plan_weight(
        &mut self,
        sample: Option<&TenantSample>,
        tenant: &TenantPlan,
        period: &mut Period,
    ) {
        let (Some(weight), Some(path)) = (tenant.weight, sample.and_then(|s| s.cgroup.as_ref()))
        else {
            return;
        };
        let Some(hierarchy) = &self.host.cgroups.cpu else {
            return;
        };
        let Some(file) = hierarchy.weight_file(path) else {
            return;
        };
        let want = hierarchy.units(weight);
        if !self.state.cgroups.contains_key(path) && !self.unreadable.contains(path) {
            match cgroup::read_weight(&file) {
                Ok((inode, now)) => {
                    let mut cgroup = Cgroup {
                        inode,
                        tenant: Some(tenant.name.clone()),
                        setting: Setting::new(Value::Weight(now), Value::Weight(now)),
                        planned: 0,
                        unmet: None,
                        idle: false,
                    };
                    if cgroup::is_idle(&file) {
                        idles(path, &mut cgroup, &mut period.report);
                    }
                    self.state.cgroups.insert(path.clone(), cgroup);
                }
                Err(error) => {
                    self.unreadable.insert(path.clone());
                    if self
                        .notes_given
                        .first(&tenant.name, None, "weight", self.period)
                    {
                        let text = format!(
                            "its weight cannot be set: {}: {error} (is the CPU controller enabled \
                             for this cgroup?)",
                            file.display()
                        );
                        let subject = Subject::Cgroup(path.clone());
                        let tenant = Some(tenant.name.clone());
                        period.report.notes.push(Note {
                            tenant,
                            subject,
                            text,
                        });
                    }
                }
            }
        }
        let Some(cgroup) = self.state.cgroups.get_mut(path) else {
            period.report.left_alone += 1;
            return;
        };
        cgroup.planned = self.period;
        if cgroup.setting.hands_off.is_some() || cgroup.idle {
            period.report.left_alone += 1;
        } else if cgroup.setting.last == Value::Weight(want) {
            period.report.unchanged += 1;
        } else {
            period.weights.push((path.clone(), want));
        }
    }

    /// Gives back the weights that the plan no longer mentions.
    pub(super) fn give_back_weights(
        &mut self,
        report: &mut ApplyReport,
        dropped: &mut Vec<Record>,
    ) {
        let mut done = RestoreReport::default();
        let (period, host) = (self.period, &self.host);
        self.state.cgroups.retain(|path, cgroup| {
            if cgroup.planned == period {
                return true;
            }
            let notes = done.notes.len();
            if state::undo_cgroup(path, cgroup, host, &mut done) {
                cgroup.setting.hands_off = Some(HandsOff::Refused);
                if std::mem::replace(&mut cgroup.setting.stuck, true) {
                    done.notes.truncate(notes);
                }
                return true;
            }
            dropped.push(Record::DropCgroup {
                inode: cgroup.inode,
            });
            false
        });
        report.given_back += done.restored;
        report.gone += done.gone;
        report.notes.append(&mut done.notes);
    }

    /// Writes a weight, unless another program has changed it or the cgroup is idle.
    pub(super) fn write_weight(&mut self, path: &CgroupPath, to: u64, report: &mut ApplyReport) {
        let Some(file) = self
            .host
            .cgroups
            .cpu
            .as_ref()
            .and_then(|h| h.weight_file(path))
        else {
            return;
        };
        let Some(cgroup) = self.state.cgroups.get_mut(path) else {
            return;
        };
        let result = match cgroup::read_weight(&file) {
            Ok((inode, _)) if inode != cgroup.inode => {
                Err(io::Error::from_raw_os_error(libc::ENOENT))
            }
            Ok(_) if cgroup::is_idle(&file) => {
                report.left_alone += 1;
                return idles(path, cgroup, report);
            }
            Ok((_, now)) if !cgroup.setting.expects(&Value::Weight(now)) => {
                report.left_alone += 1;
                return taken_over(path, cgroup, now, report);
            }
            Ok(_) => cgroup::write_weight(&file, to),
            Err(error) => Err(error),
        };
        match result {
            Ok(()) => {
                cgroup.setting.wrote(Value::Weight(to));
                cgroup.unmet = None;
                report.writes.cgroup_weight += 1;
            }
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENODEV)) => {
                report.gone += 1;
                self.state.cgroups.remove(path);
            }
            Err(error) => {
                cgroup.setting.hands_off = Some(HandsOff::Refused);
                report.left_alone += 1;
                let text = format!("its weight cannot be set: {error}{}", hint(&error));
                does_not_hold(path, cgroup, text, report);
            }
        }
    }

    /// Checks, for one cgroup in each call in turn, whether the weight is as Quell left it.
    pub(super) fn check_one_weight(&mut self, report: &mut ApplyReport) {
        let count = self.state.cgroups.len() as u64;
        let Some(hierarchy) = self.host.cgroups.cpu.as_ref().filter(|_| count > 0) else {
            return;
        };
        let nth = (self.period % count) as usize;
        let Some((path, cgroup)) = self.state.cgroups.iter_mut().nth(nth) else {
            return;
        };
        let Some(file) = hierarchy.weight_file(path) else {
            return;
        };
        let Ok((inode, now)) = cgroup::read_weight(&file) else {
            return;
        };
        if inode != cgroup.inode || cgroup.setting.hands_off.is_some() {
            return;
        }
        let idle = cgroup::is_idle(&file);
        if idle && !cgroup.idle {
            idles(path, cgroup, report);
        } else if !idle && cgroup.idle {
            cgroup.idle = false;
            cgroup.unmet = None;
            if !cgroup.setting.touched() {
                // The value read while the cgroup was idle was no weight.
                cgroup.setting = Setting::new(Value::Weight(now), Value::Weight(now));
            } else if now == hierarchy.units(TenantWeight::DEFAULT) {
                // The kernel's own weight, when idle ends.
                cgroup.setting.wrote(Value::Weight(now));
            } else if !cgroup.setting.expects(&Value::Weight(now)) {
                taken_over(path, cgroup, now, report);
            }
        } else if !idle && !cgroup.setting.expects(&Value::Weight(now)) {
            taken_over(path, cgroup, now, report);
        }
    }
}

/// Notes that a cgroup's weight does not hold, which stays so until further notice.
fn does_not_hold(path: &CgroupPath, cgroup: &mut Cgroup, text: String, report: &mut ApplyReport) {
    let (tenant, subject) = (cgroup.tenant.clone(), Subject::Cgroup(path.clone()));
    cgroup.unmet = Some(format!("cgroup {path}: {text}"));
    report.notes.push(Note {
        tenant,
        subject,
        text,
    });
}

fn idles(path: &CgroupPath, cgroup: &mut Cgroup, report: &mut ApplyReport) {
    cgroup.idle = true;
    let text =
        "its weight cannot be set as long as it is idle (cpu.idle = 1); it is when that ends";
    does_not_hold(path, cgroup, text.to_string(), report);
}

/// Notes that another program changed a cgroup's weight, which from now on is left to that program.
fn taken_over(path: &CgroupPath, cgroup: &mut Cgroup, now: u64, report: &mut ApplyReport) {
    cgroup.setting.hands_off = Some(HandsOff::Foreign);
    let text = format!(
        "weight left at {now} from now on: someone else changed it since Quell left it at {}",
        cgroup.setting.last
    );
    does_not_hold(path, cgroup, text, report);
}

//! An audit of promises: whether servers got their budgets, by rules that are independent of the
//! scheduler's code.
//!
//! Problem: a scheduler's own counters repeat its mistakes.
//! Approach: from the events of a CPU's servers (they want CPU time, they have the CPU), in order, this
//! keeps the accounts that the rules ask for (Akita, sections 3.2 and 3.3; wakeups as constant-bandwidth
//! servers, Abeni and Buttazzo 1998): periods, budgets, the mode. A promise is due at the end of a
//! period to a server that wanted CPU time from the period's beginning, or from when it woke, until
//! then; to a server of low criticality only if the CPU was in LO mode meanwhile. The rest, the threads
//! without a promise, is taken to want the CPU always if the CPU has a reserve for it: it is owed its
//! part of the time, less what it got, and once that is a budget, it is promised one within a period.
//! Limits: temperature 0, at which the mode ends as soon as no server of high criticality has a budget
//! and wants CPU time.

use quell_model::config::{Criticality, Server};

/// An event of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// The server wants CPU time from now on.
    Wakes,
    /// The server wants no CPU time any more.
    Sleeps,
    /// The server has the CPU from now on.
    Begins,
    /// The server does not have the CPU any more.
    Ends,
}

/// A promise that was broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Miss {
    /// The server's index; that of the rest is after all others.
    pub server: usize,
    /// The beginning of the interval, in ns.
    pub from: u64,
    /// The end of the interval, in ns.
    pub deadline: u64,
    /// The CPU time that was due in between, in ns.
    pub due_ns: u64,
    /// The CPU time that the server received, in ns.
    pub received_ns: u64,
}

/// The running server lost its claim to the CPU while another one had a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Enforcement {
    /// When the claim was lost, in ns.
    pub at: u64,
    /// Whether HI mode began; else the server's budget was used up.
    pub by_mode: bool,
    /// For how long the server ran on all the same, in ns.
    pub late_ns: u64,
}

#[derive(Debug, Clone, Copy)]
struct Account {
    server: Server,
    wants: bool,
    runs: bool,
    began: u64,
    deadline: u64,
    /// CPU time since the optimistic budget began.
    used: u64,
    usual_at: u64,
    /// The used time at the beginning of the period, and the limit of the used time at its end (`allowed`).
    carried: u64,
    allowed: u64,
    /// The promise: it covers `from` to the deadline, with the due and the received CPU time, and whether
    /// it is due at all.
    from: u64,
    due: u64,
    received: u64,
    promised: bool,
    /// Whether the server runs and has a budget.
    claims: bool,
    /// The overrun, while the server runs on without a claim.
    enforced: Option<Enforcement>,
    /// The time before which neither the period's beginning nor the budget left is known; the server's first
    /// wakeup after it makes them known.
    unsure_until: u64,
}

/// The threads without a promise, as one server.
#[derive(Debug, Clone, Copy)]
struct Rest {
    server: Server,
    /// The time since when its part of the time is owed to the rest.
    from: u64,
    /// The part left of the promised budget, and its deadline.
    left: u64,
    deadline: u64,
    /// An upper bound of `left` if times are inexact: small errors of its service add up to a budget sooner
    /// or later.
    may_left: u64,
}

impl Rest {
    fn next(&self, now: u64, runs: bool) -> u64 {
        match self.left {
            0 => self.from + self.server.period_ns,
            left if runs => self.deadline.min(now + left),
            _ => self.deadline,
        }
    }

    fn run(&mut self, passed: u64, now: u64) {
        let Server {
            period_ns,
            budget_ns,
            ..
        } = self.server;
        self.left = self.left.saturating_sub(passed);
        self.may_left = self.may_left.saturating_sub(passed);
        let paid = product(passed, period_ns) / u128::from(budget_ns);
        self.from = now.min(self.from + paid as u64);
    }

    fn come(&mut self, now: u64) {
        let period_ns = self.server.period_ns;
        if 2 * (now - self.from) >= period_ns {
            self.may_left = self.server.budget_ns;
        }
        if self.left == 0 && now - self.from >= period_ns {
            self.left = self.server.budget_ns;
            self.deadline = now + period_ns;
            self.from = now - period_ns;
        }
    }
}

/// The accounts of one CPU.
#[derive(Debug)]
pub struct Audit {
    accounts: Vec<Account>,
    rest: Option<Rest>,
    now: u64,
    /// Whether the CPU is in HI mode.
    critical: bool,
    /// Whether HI mode, if it is on, has certainly not ended meanwhile.
    critical_for_sure: bool,
    /// The time until which HI mode may last if times are inexact; `u64::MAX`: until the next event.
    critical_until: u64,
    tolerance_ns: u64,
    /// The greatest error of the events' times.
    slop_ns: u64,
    misses: Vec<Miss>,
    kept: u64,
    switches: u64,
    enforced: Vec<Enforcement>,
}

impl Account {
    fn high(&self) -> bool {
        self.server.criticality == Criticality::High
    }

    fn begin(&mut self, now: u64, critical: bool) {
        self.began = now;
        self.usual_at = now;
        self.deadline = now + self.server.period_ns;
        self.used = 0;
        self.carried = 0;
        self.allowed = self.server.pessimistic_ns;
        self.expect(now, critical);
    }

    fn expect(&mut self, now: u64, critical: bool) {
        self.from = now;
        self.due = self.allowed.saturating_sub(self.used);
        self.received = 0;
        self.promised = self.high() || !critical;
    }

    /// Notes whether the server's state is known at its wakeup if times may be off by `slop`.
    fn doubt(&mut self, now: u64, slop: u64) {
        let Server {
            period_ns,
            budget_ns,
            pessimistic_ns,
            ..
        } = self.server;
        if now < self.unsure_until {
            return self.unsure_until = self.unsure_until.max(now + period_ns);
        }
        let near = |one: u64, other: u64| one.abs_diff(other) <= slop;
        let part =
            |budget: u64, since: u64| (product(now - since, budget) / u128::from(period_ns)) as u64;
        let (usual, most) = (
            part(budget_ns, self.usual_at),
            part(pessimistic_ns, self.began),
        );
        let own = self.used - self.carried;
        // The server certainly begins a new period with a full budget.
        let begins = self.used + slop < usual && own + slop < most;
        let at_edge = near(self.used, usual)
            || near(own, most)
            || near(now, self.usual_at + period_ns)
            || near(now, self.deadline);
        if now < self.deadline + slop && !begins && at_edge {
            self.unsure_until = self.deadline.max(now) + period_ns;
        }
    }

    fn wake(&mut self, now: u64, critical: bool) {
        let Server {
            period_ns,
            budget_ns,
            pessimistic_ns,
            ..
        } = self.server;
        let less = |used: u64, budget: u64, since: u64| {
            product(used, period_ns) < product(budget, now - since)
        };
        let usual = now >= self.usual_at + period_ns || less(self.used, budget_ns, self.usual_at);
        let most = less(self.used - self.carried, pessimistic_ns, self.began);
        if now >= self.deadline || (usual && most) {
            return self.begin(now, critical);
        }
        if most {
            self.began = now;
            self.deadline = now + period_ns;
            self.carried = self.used;
            self.allowed = self.used + pessimistic_ns;
        } else {
            let rest = product(pessimistic_ns, self.deadline - now) / u128::from(period_ns);
            self.allowed = self.allowed.min(self.used + rest as u64);
        }
        self.expect(now, critical);
    }

    fn has_budget(&self, critical: bool) -> bool {
        self.used < self.allowed && (self.high() || !critical)
    }

    /// Whether the server wants more than it usually needs.
    fn overruns(&self) -> bool {
        let usual = self.server.budget_ns;
        self.wants
            && self.high()
            && (usual..self.allowed).contains(&self.used)
            && usual < self.server.pessimistic_ns
    }

    /// Whether HI mode cannot end because of the server.
    fn keeps_mode(&self) -> bool {
        self.wants && self.high() && self.has_budget(true)
    }

    /// The latest time at which the server's state changes without an event.
    fn next(&self, now: u64, critical: bool) -> u64 {
        if !self.wants {
            return u64::MAX;
        }
        let limits = [self.server.budget_ns, self.allowed];
        let left = limits.into_iter().filter(|limit| *limit > self.used);
        let exhausted = match self.runs && self.has_budget(critical) {
            true => left.map(|limit| now + limit - self.used).min(),
            false => None,
        };
        exhausted.unwrap_or(u64::MAX).min(self.deadline)
    }
}

fn product(a: u64, b: u64) -> u128 {
    u128::from(a) * u128::from(b)
}

impl Audit {
    /// An audit of a CPU's servers, none of which wants CPU time yet, and of the reserve for the rest. A
    /// deficit of at most `tolerance_ns` does not count.
    pub fn new(servers: &[Server], reserve: Option<Server>, tolerance_ns: u64) -> Audit {
        let account = |server: &Server| Account {
            server: *server,
            wants: false,
            runs: false,
            began: 0,
            deadline: 0,
            used: 0,
            usual_at: 0,
            carried: 0,
            allowed: 0,
            from: 0,
            due: 0,
            received: 0,
            promised: false,
            claims: false,
            enforced: None,
            unsure_until: 0,
        };
        Audit {
            accounts: servers.iter().map(account).collect(),
            rest: reserve.map(|server| Rest {
                server,
                from: 0,
                left: 0,
                deadline: u64::MAX,
                may_left: 0,
            }),
            now: 0,
            critical: false,
            critical_for_sure: true,
            critical_until: 0,
            tolerance_ns,
            slop_ns: 0,
            misses: Vec::new(),
            kept: 0,
            switches: 0,
            enforced: Vec::new(),
        }
    }

    /// Sets the greatest error of the events' times. Promises that depend on less are not judged, nor
    /// those of low criticality while a server of high criticality may have needed HI mode, nor those of
    /// the rest. The same holds for servers that run on without a claim, and for the claims of others.
    #[must_use]
    pub fn approximate(self, slop_ns: u64) -> Audit {
        Audit { slop_ns, ..self }
    }

    /// Records an event of a server; times must not decrease.
    pub fn event(&mut self, at: u64, server: usize, event: Event) {
        self.advance(at);
        let (critical, slop) = (self.critical, self.slop_ns);
        let account = &mut self.accounts[server];
        match event {
            Event::Wakes if !account.wants => {
                account.wants = true;
                if slop > 0 {
                    account.doubt(at, slop);
                }
                account.wake(at, critical);
            }
            Event::Wakes => {}
            Event::Sleeps => account.wants = false,
            Event::Begins => account.runs = true,
            Event::Ends => {
                account.runs = false;
                self.enforced.extend(account.enforced.take());
            }
        }
        self.settle();
    }

    /// Records that no event happened until `to`.
    pub fn advance(&mut self, to: u64) {
        while self.now < to {
            let served = |it: &Account| it.runs && it.has_budget(self.critical);
            let rest_runs = !self.accounts.iter().any(served);
            let next = self.accounts.iter();
            let next = next.map(|it| it.next(self.now, self.critical));
            let rest = self.rest.map(|it| it.next(self.now, rest_runs));
            let next = next.chain(rest).min();
            let next = next.unwrap_or(to).clamp(self.now, to);
            let passed = next - self.now;
            let claimed = self.is_claimed();
            if let Some(rest) = self.rest.as_mut() {
                if rest_runs {
                    rest.run(passed, next);
                }
                if rest.deadline <= next {
                    let Server {
                        period_ns,
                        budget_ns,
                        ..
                    } = rest.server;
                    if self.slop_ns == 0 && rest.left > self.tolerance_ns {
                        self.misses.push(Miss {
                            server: self.accounts.len(),
                            from: rest.deadline - period_ns,
                            deadline: rest.deadline,
                            due_ns: budget_ns,
                            received_ns: budget_ns - rest.left,
                        });
                    } else {
                        self.kept += 1;
                    }
                    rest.deadline = u64::MAX;
                }
                rest.come(next);
            }
            for account in self.accounts.iter_mut().filter(|it| it.runs) {
                account.received += passed;
                if let Some(enforced) = account.enforced.as_mut().filter(|_| claimed) {
                    enforced.late_ns += passed;
                }
                if account.has_budget(self.critical) {
                    account.used += passed;
                }
            }
            self.now = next;
            for (server, account) in self.accounts.iter_mut().enumerate() {
                if !account.wants || account.deadline > next {
                    continue;
                }
                // A period that began at a wakeup in an unknown state is unknown itself.
                if next <= account.unsure_until {
                    account.unsure_until = account.deadline + 2 * account.server.period_ns;
                } else if account.promised && account.received + self.tolerance_ns < account.due {
                    self.misses.push(Miss {
                        server,
                        from: account.from,
                        deadline: account.deadline,
                        due_ns: account.due,
                        received_ns: account.received,
                    });
                } else if account.promised {
                    self.kept += 1;
                }
                account.begin(account.deadline, self.critical);
            }
            self.settle();
        }
    }

    /// Marks the state of low-criticality servers as unknown while a high-criticality one may have needed HI
    /// mode, and until that may have ended.
    fn doubt_mode(&mut self) {
        let slop = self.slop_ns;
        if slop == 0 {
            return;
        }
        self.doubt_rest();
        let may_overrun = |it: &Account| {
            let usual = it.server.budget_ns;
            let over = it.used + slop >= usual && usual < it.server.pessimistic_ns;
            it.wants && it.high() && (over || self.now < it.unsure_until)
        };
        let mut accounts = self.accounts.iter();
        // HI mode does not end while one of them has a budget, whatever that server needs.
        let holds = self.critical
            || accounts.clone().any(may_overrun)
            || (self.now < self.critical_until && accounts.any(Account::keeps_mode));
        if !holds && self.critical_until < u64::MAX {
            return;
        }
        let ends = self.now + slop + self.rest.map_or(0, |it| it.server.budget_ns);
        self.critical_until = if holds { u64::MAX } else { ends };
        for account in self.accounts.iter_mut().filter(|it| !it.high()) {
            account.unsure_until = account.unsure_until.max(ends + account.server.period_ns);
        }
    }

    /// While HI mode may have ended, the rest may be owed time in which other servers run, as those of low
    /// criticality have their budgets again in LO mode.
    fn doubt_rest(&mut self) {
        let slop = self.slop_ns;
        let keeps = |it: &Account| it.keeps_mode() && it.used + slop < it.allowed;
        let overruns = |it: &Account| keeps(it) && it.used >= it.server.budget_ns + slop;
        self.critical_for_sure &= self.accounts.iter().any(keeps);
        self.critical_for_sure |= !self.critical || self.accounts.iter().any(overruns);
        if let Some(rest) = self.rest.as_mut().filter(|_| !self.critical_for_sure) {
            rest.may_left = rest.server.budget_ns;
        }
    }

    /// Whether a waiting server certainly has a budget.
    fn is_claimed(&self) -> bool {
        let claims = |it: &Account| {
            let sure = self.now >= it.unsure_until && it.used + self.slop_ns < it.allowed;
            it.wants && !it.runs && it.has_budget(self.critical) && sure
        };
        self.accounts.iter().any(claims)
    }

    /// Updates, after each change, the mode and the servers that run without a claim.
    fn settle(&mut self) {
        let begins = self.choose_mode();
        self.doubt_mode();
        let (critical, now) = (self.critical, self.now);
        let claimed = self.is_claimed();
        // A server that runs without a budget uses the time of the rest, which may have a claim.
        let rest_claims = self.rest.is_some_and(|it| it.left > 0);
        let rest_may = self.slop_ns > 0 && self.rest.is_some_and(|it| it.may_left > 0);
        for account in &mut self.accounts {
            let claims = account.runs && (account.has_budget(critical) || rest_claims);
            // HI mode ends the claim of a server of low criticality, whatever is left of its budget.
            let by_mode = account.runs && begins && !account.high();
            let ceases = account.runs && account.claims && now >= account.unsure_until;
            if claims {
                self.enforced.extend(account.enforced.take());
            } else if (by_mode || ceases) && claimed && !rest_may {
                let late = Enforcement {
                    at: now,
                    by_mode,
                    late_ns: 0,
                };
                account.enforced.get_or_insert(late);
            }
            account.claims = claims;
        }
    }

    /// Updates the mode; returns whether HI mode begins.
    fn choose_mode(&mut self) -> bool {
        let before = self.critical;
        if self.accounts.iter().any(Account::overruns) {
            self.critical = true;
        } else if !self.accounts.iter().any(Account::keeps_mode)
            && self.rest.is_none_or(|it| it.left == 0)
        {
            self.critical = false;
        }
        if self.critical && !before {
            self.switches += 1;
            for account in self.accounts.iter_mut().filter(|it| !it.high()) {
                account.promised = false;
            }
        } else if before && !self.critical {
            let now = self.now;
            let low = self.accounts.iter_mut();
            for account in low.filter(|it| !it.high() && it.wants) {
                account.begin(now, false);
            }
        }
        self.critical && !before
    }

    /// The promises that were broken so far.
    pub fn misses(&self) -> &[Miss] {
        &self.misses
    }

    /// The number of promises that were kept.
    pub fn kept(&self) -> u64 {
        self.kept
    }

    /// The cases in which a running server lost its claim while another one had one.
    pub fn enforced(&self) -> &[Enforcement] {
        &self.enforced
    }

    /// The number of times that HI mode began.
    pub fn switches(&self) -> u64 {
        self.switches
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(criticality: Criticality, budget: u64, most: u64) -> Server {
        Server {
            criticality,
            period_ns: 100,
            budget_ns: budget,
            pessimistic_ns: most,
        }
    }

    #[test]
    fn a_promise_is_kept_or_broken() {
        let low = server(Criticality::Low, 30, 30);
        for (ran, misses) in [(30, 0), (29, 1)] {
            let mut audit = Audit::new(&[low], None, 0);
            audit.event(1000, 0, Event::Wakes);
            audit.event(1050, 0, Event::Begins);
            audit.event(1050 + ran, 0, Event::Ends);
            audit.advance(1100);
            assert_eq!(
                (audit.misses().len(), audit.kept()),
                (misses, 1 - misses as u64)
            );
        }
    }

    #[test]
    fn who_sleeps_wants_no_more() {
        let mut audit = Audit::new(&[server(Criticality::Low, 30, 30)], None, 0);
        audit.event(0, 0, Event::Wakes);
        audit.event(0, 0, Event::Begins);
        audit.event(20, 0, Event::Ends);
        audit.event(20, 0, Event::Sleeps);
        // The server used more than its part of the time, so the period goes on: 10 are left, of which
        // it gets 9.
        audit.event(50, 0, Event::Wakes);
        audit.event(90, 0, Event::Begins);
        audit.event(99, 0, Event::Ends);
        audit.advance(100);
        let miss = audit.misses()[0];
        assert_eq!((miss.from, miss.deadline), (50, 100));
        assert_eq!((miss.due_ns, miss.received_ns), (10, 9));
    }

    #[test]
    fn who_runs_on_without_a_budget_is_late() {
        let low = server(Criticality::Low, 30, 30);
        let mut audit = Audit::new(&[low, low], None, 0);
        audit.event(0, 0, Event::Wakes);
        audit.event(0, 0, Event::Begins);
        // Without a waiting server it may run on.
        audit.event(40, 0, Event::Ends);
        assert_eq!(audit.enforced(), []);
        audit.event(40, 1, Event::Wakes);
        audit.event(40, 1, Event::Begins);
        audit.event(60, 1, Event::Ends);
        audit.event(60, 0, Event::Begins);
        audit.event(100, 0, Event::Ends);
        audit.event(100, 0, Event::Begins);
        // It has 30 of its new period, and the other 10 of its own, which goes on to 140.
        audit.event(137, 0, Event::Ends);
        let late = Enforcement {
            at: 130,
            by_mode: false,
            late_ns: 7,
        };
        assert_eq!(audit.enforced(), [late]);
    }

    #[test]
    fn who_runs_on_for_the_rest_is_not_late() {
        let low = |budget| server(Criticality::Low, budget, budget);
        let rest = server(Criticality::High, 10, 10);
        let mut audit = Audit::new(&[low(60), low(50)], Some(rest), 0);
        audit.event(1000, 0, Event::Wakes);
        audit.event(1000, 0, Event::Begins);
        audit.event(1050, 1, Event::Wakes);
        audit.event(1060, 0, Event::Ends);
        audit.event(1060, 1, Event::Begins);
        // At 1100 the rest is owed all of its budget, at 1110 this server has used its own: it has the
        // rest's until 1120.
        audit.event(1125, 1, Event::Ends);
        let late = |at, late_ns| Enforcement {
            at,
            by_mode: false,
            late_ns,
        };
        assert_eq!(audit.enforced(), [late(1060, 0), late(1120, 5)]);
    }

    #[test]
    fn who_runs_on_for_the_rest_that_may_have_a_budget_is_not_late() {
        let low = |budget| server(Criticality::Low, budget, budget);
        let rest = server(Criticality::High, 10, 10);
        // From 1058 on the rest has `got`, of 10 that it may have been owed by then; then this server has 2
        // left.
        for (got, late) in [(6, 0), (12, 1)] {
            let mut audit = Audit::new(&[low(60), low(50)], Some(rest), 0).approximate(2);
            audit.event(1000, 0, Event::Wakes);
            audit.event(1000, 0, Event::Begins);
            audit.event(1050, 1, Event::Wakes);
            audit.event(1058, 0, Event::Ends);
            audit.event(1058 + got, 0, Event::Begins);
            audit.event(1058 + got + 4, 0, Event::Ends);
            assert_eq!(audit.enforced().len(), late, "{got}");
        }
    }

    #[test]
    fn who_runs_on_for_the_rest_is_not_late_where_hi_mode_may_have_ended() {
        let high = server(Criticality::High, 20, 40);
        let low = server(Criticality::Low, 30, 30);
        let rest = server(Criticality::High, 10, 10);
        // With `used` of 40 used by the second server HI mode may end, or not: then the third server's
        // time is not the rest's.
        for (used, late) in [(39, 0), (36, 1)] {
            let mut audit = Audit::new(&[high, high, low], Some(rest), 0).approximate(2);
            audit.event(1000, 0, Event::Wakes);
            audit.event(1000, 0, Event::Begins);
            audit.event(1000, 2, Event::Wakes);
            audit.event(1030, 1, Event::Wakes);
            audit.event(1040, 0, Event::Ends);
            audit.event(1040, 1, Event::Begins);
            audit.event(1040 + used, 1, Event::Ends);
            audit.event(1040 + used, 2, Event::Begins);
            // From 1100 on the first server has a budget again.
            audit.event(1115, 2, Event::Ends);
            audit.event(1115, 1, Event::Begins);
            audit.event(1125, 1, Event::Ends);
            let late_at_all = audit.enforced().iter().filter(|it| it.late_ns > 0);
            assert_eq!(late_at_all.count(), late, "{used}");
        }
    }

    #[test]
    fn who_may_have_a_budget_is_not_late() {
        let low = server(Criticality::Low, 30, 30);
        // The server sleeps with `used`, of which its part of the time until it wakes is 15: it has all
        // of its budget then, or maybe not.
        for (used, late) in [(10, 1), (14, 0), (16, 0)] {
            let mut audit = Audit::new(&[low, low], None, 0).approximate(2);
            audit.event(1000, 0, Event::Wakes);
            audit.event(1000, 0, Event::Begins);
            audit.event(1000 + used, 0, Event::Ends);
            audit.event(1000 + used, 0, Event::Sleeps);
            audit.event(1050, 0, Event::Wakes);
            audit.event(1050, 0, Event::Begins);
            audit.event(1050, 1, Event::Wakes);
            audit.event(1095, 0, Event::Ends);
            assert_eq!(audit.enforced().len(), late, "{used}");
        }
    }

    #[test]
    fn nobody_is_late_beside_who_may_have_used_its_budget() {
        let low = server(Criticality::Low, 30, 30);
        for (used, late) in [(27, 1), (28, 0), (29, 0)] {
            let mut audit = Audit::new(&[low, low], None, 0).approximate(2);
            audit.event(1000, 1, Event::Wakes);
            audit.event(1000, 1, Event::Begins);
            audit.event(1000, 0, Event::Wakes);
            audit.event(1000 + used, 1, Event::Ends);
            audit.event(1000 + used, 0, Event::Begins);
            audit.event(1090, 0, Event::Ends);
            assert_eq!(audit.enforced().len(), late, "{used}");
        }
    }

    #[test]
    fn what_hangs_on_less_than_is_known_is_not_judged() {
        let servers = [
            server(Criticality::High, 30, 60),
            server(Criticality::Low, 20, 20),
        ];
        // The server sleeps with `used`, of which its parts of the time until it wakes are 15 and 30; no
        // server gets any time then.
        for (used, misses) in [(10, 2), (14, 0), (16, 0), (20, 2), (29, 0), (35, 1)] {
            let mut audit = Audit::new(&servers, None, 0).approximate(2);
            audit.event(1000, 0, Event::Wakes);
            audit.event(1000, 0, Event::Begins);
            audit.event(1000 + used, 0, Event::Ends);
            audit.event(1000 + used, 0, Event::Sleeps);
            audit.event(1050, 0, Event::Wakes);
            audit.event(1050, 1, Event::Wakes);
            audit.advance(1155);
            assert_eq!(audit.misses().len(), misses, "{used}: {:?}", audit.misses());
        }
    }

    #[test]
    fn a_mode_that_may_go_on_is_not_judged_by() {
        let high = server(Criticality::High, 40, 60);
        let servers = [high, high, server(Criticality::Low, 20, 20)];
        // The second server wakes as HI mode ends, or is seen to: a little later, and it may go on until the
        // other sleeps, or surely not.
        for (later, misses) in [(1, 0), (3, 1)] {
            let mut audit = Audit::new(&servers, None, 0).approximate(2);
            audit.event(1000, 0, Event::Wakes);
            audit.event(1000, 0, Event::Begins);
            audit.event(1045, 0, Event::Ends);
            audit.event(1045, 0, Event::Sleeps);
            audit.event(1045 + later, 1, Event::Wakes);
            audit.advance(1300);
            audit.event(1300, 2, Event::Wakes);
            audit.advance(1400);
            let low = audit.misses().iter().filter(|it| it.server == 2);
            assert_eq!(low.count(), misses, "{later}");
        }
    }

    #[test]
    fn the_rest_is_promised_what_it_is_owed() {
        let miss = Miss {
            server: 1,
            from: 1150,
            deadline: 1250,
            due_ns: 10,
            received_ns: 5,
        };
        // Of each period the rest gets the time that the other has no budget for: all that is owed, or half.
        for (budget, misses) in [(90, &[][..]), (95, &[miss])] {
            let low = server(Criticality::Low, budget, budget);
            let mut audit = Audit::new(&[low], Some(server(Criticality::High, 10, 10)), 0);
            audit.event(1000, 0, Event::Wakes);
            audit.event(1000, 0, Event::Begins);
            audit.event(1300, 0, Event::Ends);
            assert_eq!((audit.misses(), audit.kept()), (misses, 3));
        }
    }

    #[test]
    fn who_is_of_low_criticality_makes_way_for_hi_mode() {
        let servers = [
            server(Criticality::High, 10, 60),
            server(Criticality::Low, 50, 50),
        ];
        let mut audit = Audit::new(&servers, None, 0);
        audit.event(0, 0, Event::Wakes);
        audit.event(0, 0, Event::Begins);
        audit.event(15, 0, Event::Ends);
        audit.event(15, 0, Event::Sleeps);
        audit.event(15, 1, Event::Wakes);
        audit.event(15, 1, Event::Begins);
        // The server wants more than it usually needs.
        audit.event(20, 0, Event::Wakes);
        audit.event(23, 1, Event::Ends);
        let late = Enforcement {
            at: 20,
            by_mode: true,
            late_ns: 3,
        };
        assert_eq!((audit.switches(), audit.enforced()), (2, &[late][..]));
    }

    #[test]
    fn a_period_that_may_have_begun_when_hi_mode_may_have_ended_is_not_judged() {
        let servers = [
            server(Criticality::High, 10, 60),
            server(Criticality::Low, 50, 50),
        ];
        let missed = |slop| {
            let mut audit = Audit::new(&servers, None, 0).approximate(slop);
            audit.event(1000, 0, Event::Wakes);
            audit.event(1000, 0, Event::Begins);
            audit.event(1005, 1, Event::Wakes);
            // It may have used its budget up: then HI mode ends, and a period of the other begins.
            audit.event(1059, 0, Event::Ends);
            audit.event(1059, 1, Event::Begins);
            audit.event(1080, 1, Event::Ends);
            audit.event(1080, 1, Event::Sleeps);
            audit.event(1081, 0, Event::Begins);
            audit.event(1081, 0, Event::Ends);
            audit.event(1081, 0, Event::Sleeps);
            // The other 29 of that period, and those of the next one from 1159 on.
            audit.event(1084, 1, Event::Wakes);
            audit.event(1084, 1, Event::Begins);
            audit.event(1113, 1, Event::Ends);
            audit.event(1205, 1, Event::Begins);
            audit.event(1255, 1, Event::Ends);
            audit.advance(1290);
            audit.misses().len()
        };
        assert_eq!((missed(2), missed(0)), (0, 1));
    }

    #[test]
    fn who_makes_way_for_hi_mode_is_known_whatever_its_budget_is() {
        let servers = [
            server(Criticality::High, 10, 60),
            server(Criticality::Low, 50, 50),
        ];
        // After an overrun it is not known what budget the server of low criticality has, nor that it
        // has none after so long.
        for ran in [5, 55] {
            let mut audit = Audit::new(&servers, None, 0).approximate(2);
            audit.event(1000, 0, Event::Wakes);
            audit.event(1000, 0, Event::Begins);
            audit.event(1015, 0, Event::Ends);
            audit.event(1015, 0, Event::Sleeps);
            audit.event(1015, 1, Event::Wakes);
            audit.event(1015, 1, Event::Begins);
            audit.event(1015 + ran, 0, Event::Wakes);
            audit.event(1018 + ran, 1, Event::Ends);
            let late = Enforcement {
                at: 1015 + ran,
                by_mode: true,
                late_ns: 3,
            };
            assert_eq!(
                (audit.switches(), audit.enforced()),
                (2, &[late][..]),
                "{ran}"
            );
        }
    }

    #[test]
    fn low_criticality_has_no_promise_in_hi_mode() {
        let servers = [
            server(Criticality::High, 10, 60),
            server(Criticality::Low, 50, 50),
        ];
        let mut audit = Audit::new(&servers, None, 0);
        audit.event(0, 1, Event::Wakes);
        audit.event(0, 0, Event::Wakes);
        audit.event(0, 0, Event::Begins);
        audit.event(59, 0, Event::Ends);
        assert_eq!(audit.switches(), 1);
        audit.event(59, 0, Event::Sleeps);
        // LO mode begins, and with it a period.
        audit.event(110, 1, Event::Begins);
        audit.advance(158);
        assert!(audit.misses().is_empty());
        audit.advance(159);
        assert_eq!(audit.misses()[0].received_ns, 49);
    }
}

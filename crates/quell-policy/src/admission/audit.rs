//! Whether servers got what they were promised, from what was seen of them: written from the rules, not from the scheduler.
//!
//! Problem: a scheduler's own counters repeat its mistakes.
//! Approach: told when a CPU's servers want CPU time and have the CPU, in order, this keeps the books that the rules ask for (Akita,
//! sections 3.2 and 3.3; wakeups as constant-bandwidth servers, Abeni and Buttazzo 1998): periods, budgets, the mode. A promise is due
//! at the end of a period to a server that wanted CPU time from the period's beginning, or from when it woke, until then;
//! one of low criticality only if the CPU was in LO mode meanwhile.
//! Limits: temperature 0, at which the mode ends as soon as no server of high criticality has a budget and wants CPU time.

use quell_model::config::{Criticality, Server};

/// What happens to a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// It wants CPU time from now on.
    Wakes,
    /// It does not any more.
    Sleeps,
    /// It has the CPU.
    Begins,
    /// It has not any more.
    Ends,
}

/// A promise that was broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Miss {
    /// Whose, by its place.
    pub server: usize,
    /// From when, in ns.
    pub from: u64,
    /// To when, in ns.
    pub deadline: u64,
    /// The CPU time that was due in between, in ns.
    pub due_ns: u64,
    /// What it got, in ns.
    pub received_ns: u64,
}

#[derive(Debug, Clone, Copy)]
struct Account {
    server: Server,
    wants: bool,
    runs: bool,
    began: u64,
    deadline: u64,
    used: u64,
    allowed: u64,
    /// What is due from then to the deadline, what was received of it, and whether it is due at all.
    from: u64,
    due: u64,
    received: u64,
    promised: bool,
}

/// The books of one CPU.
#[derive(Debug)]
pub struct Audit {
    accounts: Vec<Account>,
    now: u64,
    /// HI mode.
    critical: bool,
    tolerance_ns: u64,
    misses: Vec<Miss>,
    kept: u64,
    switches: u64,
}

impl Account {
    fn high(&self) -> bool {
        self.server.criticality == Criticality::High
    }

    fn begin(&mut self, now: u64, critical: bool) {
        self.began = now;
        self.deadline = now + self.server.period_ns;
        self.used = 0;
        self.allowed = self.server.pessimistic_ns;
        self.expect(now, critical);
    }

    fn expect(&mut self, now: u64, critical: bool) {
        self.from = now;
        self.due = self.allowed.saturating_sub(self.used);
        self.received = 0;
        self.promised = self.high() || !critical;
    }

    fn wake(&mut self, now: u64, critical: bool) {
        let Server {
            period_ns,
            budget_ns,
            pessimistic_ns,
            ..
        } = self.server;
        let product = |a: u64, b: u64| u128::from(a) * u128::from(b);
        if now >= self.deadline
            || product(self.used, period_ns) < product(budget_ns, now - self.began)
        {
            return self.begin(now, critical);
        }
        let most = product(pessimistic_ns, self.deadline - now) / u128::from(period_ns);
        self.allowed = self.allowed.min(self.used + most as u64);
        self.expect(now, critical);
    }

    fn has_budget(&self, critical: bool) -> bool {
        self.used < self.allowed && (self.high() || !critical)
    }

    /// Whether it wants more than it usually needs.
    fn overruns(&self) -> bool {
        let usual = self.server.budget_ns;
        self.wants
            && self.high()
            && (usual..self.allowed).contains(&self.used)
            && usual < self.server.pessimistic_ns
    }

    /// When its state changes by itself, at the latest.
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

impl Audit {
    /// For a CPU's servers, none of which wants CPU time. What lacks no more than `tolerance_ns` does not lack.
    pub fn new(servers: &[Server], tolerance_ns: u64) -> Audit {
        let account = |server: &Server| Account {
            server: *server,
            wants: false,
            runs: false,
            began: 0,
            deadline: 0,
            used: 0,
            allowed: 0,
            from: 0,
            due: 0,
            received: 0,
            promised: false,
        };
        Audit {
            accounts: servers.iter().map(account).collect(),
            now: 0,
            critical: false,
            tolerance_ns,
            misses: Vec::new(),
            kept: 0,
            switches: 0,
        }
    }

    /// Something happens to a server; times do not decrease.
    pub fn event(&mut self, at: u64, server: usize, event: Event) {
        self.advance(at);
        let critical = self.critical;
        let account = &mut self.accounts[server];
        match event {
            Event::Wakes if !account.wants => {
                account.wants = true;
                account.wake(at, critical);
            }
            Event::Wakes => {}
            Event::Sleeps => account.wants = false,
            Event::Begins => account.runs = true,
            Event::Ends => account.runs = false,
        }
        self.choose_mode();
    }

    /// Nothing happened until then.
    pub fn advance(&mut self, to: u64) {
        while self.now < to {
            let next = self.accounts.iter();
            let next = next.map(|it| it.next(self.now, self.critical)).min();
            let next = next.unwrap_or(to).clamp(self.now, to);
            let passed = next - self.now;
            for account in self.accounts.iter_mut().filter(|it| it.runs) {
                account.received += passed;
                if account.has_budget(self.critical) {
                    account.used += passed;
                }
            }
            self.now = next;
            for (server, account) in self.accounts.iter_mut().enumerate() {
                if !account.wants || account.deadline > next {
                    continue;
                }
                if account.promised && account.received + self.tolerance_ns < account.due {
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
            self.choose_mode();
        }
    }

    fn choose_mode(&mut self) {
        let before = self.critical;
        let wanted = |it: &Account| it.wants && it.high() && it.has_budget(true);
        if self.accounts.iter().any(Account::overruns) {
            self.critical = true;
        } else if !self.accounts.iter().any(wanted) {
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
    }

    /// The promises that were broken so far.
    pub fn misses(&self) -> &[Miss] {
        &self.misses
    }

    /// How many were kept.
    pub fn kept(&self) -> u64 {
        self.kept
    }

    /// How often HI mode began.
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
            let mut audit = Audit::new(&[low], 0);
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
        let mut audit = Audit::new(&[server(Criticality::Low, 30, 30)], 0);
        audit.event(0, 0, Event::Wakes);
        audit.event(0, 0, Event::Begins);
        audit.event(20, 0, Event::Ends);
        audit.event(20, 0, Event::Sleeps);
        // It used more than its part of the time, so the period goes on: 10 are left, of which it gets 9.
        audit.event(50, 0, Event::Wakes);
        audit.event(90, 0, Event::Begins);
        audit.event(99, 0, Event::Ends);
        audit.advance(100);
        let miss = audit.misses()[0];
        assert_eq!((miss.from, miss.deadline), (50, 100));
        assert_eq!((miss.due_ns, miss.received_ns), (10, 9));
    }

    #[test]
    fn low_criticality_has_no_promise_in_hi_mode() {
        let servers = [
            server(Criticality::High, 10, 60),
            server(Criticality::Low, 50, 50),
        ];
        let mut audit = Audit::new(&servers, 0);
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

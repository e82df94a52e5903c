/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Quell's scheduler: the sched_ext operations, which join the features.
 *
 *   fair.bpf.h        what a thread is due, by weight, and its deadline
 *   share.bpf.h       which thread is furthest behind what it is due of the host
 *   causal.bpf.h      since when its work waits
 *   request.bpf.h     how much work its requests are
 *   preempt.bpf.h   whom it preempts, and when turns end
 *   starvation.bpf.h  that it waits no longer than that
 *   server.bpf.h      what it is promised in every period
 *   migrate.bpf.h        that it makes way for threads bound to some CPUs
 *   bandwidth.bpf.h       what CPU time its cgroups may still use,
 *   throttle.bpf.h        and where it waits for that
 *   observe.bpf.h     what threads did, for the agent
 *
 * A thread wakes: it gets a deadline, and an idle CPU, or that of a thread with a later one, or a place in its domain's queue. One that is bound to a CPU
 * also takes it from a thread that can go on elsewhere at once. A CPU that has nothing to do takes the first of its domain's queues,
 * then of others': no CPU stays idle beside a ready thread that may use it. Who queues a thread looks for
 * an idle CPU afterwards, and a CPU that is about to idle looks at the queues afterwards, so that neither misses the other.
 */
#include "task.bpf.h"
#include "fair.bpf.h"
#include "causal.bpf.h"
#include "request.bpf.h"
#include "preempt.bpf.h"
#include "starvation.bpf.h"
#include "server.bpf.h"
#include "migrate.bpf.h"
#include "throttle.bpf.h"
#include "observe.bpf.h"

/* Blocked to ready. Global, so that the verifier looks at it once. */
__noinline int wake(struct thread *t, struct task_struct *p __arg_trusted, u32 cpu, u64 now)
{
	struct task_struct *by = waker();

	if (!t)
		return 0;
	observe_wake(p);
	t->present = 0;
	t->woke_at = now;
	t->invited = !!by;
	join(t, p, cpu, true, now);
	struct thread *child = ending_child(p, by);
	if (child) {
		spend(child, by, false, now);
		take_over(t, child, now);
	}
	tell_light(t, p, now);
	note_request(t, p, by);
	continue_chain(t, by, now);
	update_deadline(t, now);
	return 0;
}

/*
 * Puts a ready thread into the queue it belongs to, and finds who takes it from there if somebody idles; whether somebody does. Global, as
 * wake() is.
 */
__noinline int queue(struct thread *t, struct task_struct *p __arg_trusted, u32 cpu, u64 now)
{
	if (!t)
		return 0;
	struct place place = place_of(t, p, cpu);

	insert_ordered(p, place.queue, place.slice, place.order, 0);
	/* On a busy host nobody idles, and to search for nobody costs several times as much as to look. */
	s32 idle = p->nr_cpus_allowed > 1 && idles_for(NULL) ? scx_bpf_pick_idle_cpu(p->cpus_ptr, 0) : -1;
	if (idle >= 0) {
		scx_bpf_kick_cpu(idle, SCX_KICK_IDLE);
		return 1;
	}
	be_patient(t, now);
	if (options.share)
		make_room(p, t->domain, now);
	return 0;
}

/*
 * Whether this CPU goes offline. What is put off there until interrupts are on again, as kicks and timers are, is never done, and what is left over
 * blocks all that is put off on this CPU once it is online again (seen with 7.2: four idle CPUs beside threads that waited for ever). So who
 * becomes ready there goes straight to a local queue, which takes none of this.
 */
static __always_inline bool goes_offline(struct cpu_slot *here)
{
	return here && here->offline;
}

SEC("struct_ops/select_cpu")
s32 BPF_PROG(quell_select_cpu, struct task_struct *p, s32 prev_cpu, u64 wake_flags)
{
	struct cpu_slot *here = cpu_at(bpf_get_smp_processor_id());
	struct thread *t = thread_of(p);
	u64 now = time_ns();
	bool idle = false;

	if (goes_offline(here))
		return scx_bpf_select_cpu_dfl(p, prev_cpu, wake_flags, &idle);
	/* Whose cgroups have used up their limits is parked when it is enqueued. */
	if (!t || !here || limited_until(t, now))
		return prev_cpu;
	wake(t, p, prev_cpu, now);
	if (idles_for(NULL)) {
		s32 cpu = scx_bpf_select_cpu_dfl(p, prev_cpu, wake_flags, &idle);
		if (idle) {
			here->wakeups_idle++;
			insert_fifo(p, SCX_DSQ_LOCAL, FAIR_SLICE, ENQ_IMMED);
			return cpu;
		}
	}
	s32 victim = preemptible_cpu(p, t, t->deadline + options.margin_ns, now);
	if (victim >= 0) {
		here->wakeups_preempting++;
		insert_fifo(p, SCX_DSQ_LOCAL, FAIR_SLICE, SCX_ENQ_PREEMPT);
		return victim;
	}
	here->wakeups_queued++;
	/* Where it may run anywhere, its domain's queue is right, whatever CPU this is. */
	if (p->nr_cpus_allowed >= options.cpus)
		queue(t, p, 0, now);
	return prev_cpu;
}

/* A thread that can run on one CPU only becomes ready. */
static __always_inline bool wake_pinned(struct thread *t, struct task_struct *p, s32 cpu, u64 now)
{
	struct cpu_slot *slot = cpu_at(cpu);

	if (!slot)
		return false;
	if (claim_idle(cpu)) {
		insert_fifo(p, SCX_DSQ_LOCAL, FAIR_SLICE, 0);
		return true;
	}
	/* While a higher scheduling class has the CPU, what that interrupted would go on with its turn, and this would wait for its end. */
	u64 *resumes = &turns[bounded(cpu, MAX_CPUS)].resumes;
	u64 running = running_deadline(slot, now) ?: *resumes;
	/* A CPU's own kernel threads are part of the machine: they wait for no margin. */
	u64 margin = p->flags & PF_KTHREAD ? 0 : options.margin_ns;
	bool first = order_earlier(t->deadline + margin, running) && (!margin || now - slot->began >= least_run(t));
	/* Whoever can go on elsewhere at once leaves the CPU to one that cannot. */
	bool leaves = slot->movable == ANYWHERE && idles_for(NULL);
	if (running != ORDER_NONE && (options.asymmetry || !margin) && (first || leaves)) {
		slot->deadline = *resumes = ORDER_NONE;
		insert_fifo(p, SCX_DSQ_LOCAL, FAIR_SLICE, SCX_ENQ_PREEMPT);
		return true;
	}
	return false;
}

/* A served thread woke: runs it, if its server goes before all that its CPU could run. Whether it does. */
static __always_inline bool serve_at_once(struct thread *t, struct task_struct *p, u32 cpu)
{
	struct reservation *r = options.criticality && t->served ? reservation_at(cpu) : NULL;
	struct cpu_slot *slot = cpu_at(cpu);

	if (!r || !slot)
		return false;
	u32 chosen = choose(cpu, weighted_waits(cpu));
	if (chosen != t->served) {
		/* Its waking began HI mode, in which who runs has no budget, but the rest is owed something first. */
		if (r->occupied && chosen != r->charged)
			kick_for_budget(r, cpu);
		else
			look_again(cpu);
		return false;
	}
	if (claim_idle(cpu)) {
		insert_fifo(p, SCX_DSQ_LOCAL, FAIR_SLICE, 0);
		return true;
	}
	/* Inside a server one waits for the other. */
	if (r->occupied && r->charged == t->served)
		return false;
	slot->deadline = turns[bounded(cpu, MAX_CPUS)].resumes = ORDER_NONE;
	insert_fifo(p, SCX_DSQ_LOCAL, FAIR_SLICE, SCX_ENQ_PREEMPT);
	return true;
}

SEC("struct_ops/enqueue")
void BPF_PROG(quell_enqueue, struct task_struct *p, u64 flags)
{
	s32 cpu = scx_bpf_task_cpu(p);
	struct thread *t = thread_of(p);
	u64 now = time_ns();

	bool leaves = goes_offline(cpu_at(bpf_get_smp_processor_id()));
	if (leaves && flags & ENQ_WAKEUP)
		observe_wake(p);
	if (!t || leaves) {
		insert_fifo(p, SCX_DSQ_LOCAL, FAIR_TURN, 0);
		return;
	}
	t->left = 0;
	u64 until = limited_until(t, now);
	if (until) {
		if (flags & ENQ_WAKEUP)
			observe_wake(p);
		park(t, p, cpu, until, flags, now);
		return;
	}
	if (p->nr_cpus_allowed == 1 && flags & ENQ_WAKEUP) {
		wake(t, p, cpu, now);
		note_queue(t, QUEUE_NONE, 0);
		if (serve_at_once(t, p, cpu) || wake_pinned(t, p, cpu, now))
			return;
		queue(t, p, cpu, now);
		return;
	}
	change_domain(t, p, domain_index(cpu), cpu, now);
	if (!t->load) { /* its first time, or it came from another scheduling class */
		wake(t, p, cpu, now);
	} else if (!(flags & ENQ_WAKEUP)) {
		weigh_again(t, p, cpu, now);
		enter_server(t, p, cpu);
		update_deadline(t, now);
	}
	bool taken = queue(t, p, cpu, now);
	if (options.share && !(flags & ENQ_WAKEUP)) {
		struct cpu_slot *slot = cpu_at(cpu);
		if (slot && slot->aside == GOES)
			slot->aside = taken ? GONE : STAYS;
		/* Else it would take from another what it does not need, and the other would do the same, for ever. */
		if (taken)
			t->displaces = 0;
		else
			displace(p, t, now);
	}
}

/* Parks those at the front of a domain's queues that must not run. */
static __always_inline void park_queued(struct domain *d, u32 index)
{
	if (!limits.groups || !d->queued)
		return;
	park_first(ready_queue(index), index);
	if (d->starved)
		park_first(starved_queue(index), index);
}

/* Takes one from a domain that this CPU does not belong to. */
static __always_inline bool take_foreign(u32 index)
{
	struct domain *d = domain_at(index);

	if (!d || !d->queued)
		return false;
	park_queued(d, index);
	return take_first(ready_queue(index)) || take_first(starved_queue(index));
}

/* Other domains that are looked at, one after the other, for one where threads wait. */
#define VISITED 8

/* Another domain where threads wait, each in turn; its own: none of those that were looked at. */
static __always_inline u32 visit(struct cpu_slot *slot, u32 index)
{
	u32 other = slot->visited;

	for (u32 i = 0; i < VISITED && i + 1 < options.domains; i++) {
		other++;
		if (other == index)
			other++;
		if (other >= options.domains)
			other = index ? 0 : 1;
		struct domain *o = domain_at(other);
		if (o && o->queued) {
			slot->visited = other;
			return other;
		}
	}
	slot->visited = other;
	return index;
}

/* Where threads wait while each CPU of ours has less to do: takes one of these. */
static __always_inline bool balance(struct domain *d, u32 other)
{
	struct domain *o = domain_at(other);

	if (!o || o->queued <= o->starved)
		return false;
	/* By more than one of its threads, which all its CPUs run while some wait. */
	u64 one = o->load / (o->queued + o->online);
	if (o->load * d->online <= (d->load + one) * o->online)
		return false;
	return take_foreign(other);
}

/* Whether a queue is to be put in order; who asks does it. */
static __always_inline bool is_due(u64 *sorted_at, u64 now)
{
	u64 at = *sorted_at;

	return options.share && now > at + SORTED_EVERY && __sync_val_compare_and_swap(sorted_at, at, now) == at;
}

/* Who is to go first on a CPU of a queue's threads. */
static __always_inline struct next next_of_queue(u64 dsq, s32 cpu, u32 all)
{
	struct next next = { .cpu = cpu, .all = all };

	if (!options.share && can_peek()) {
		struct task_struct *p = scx_bpf_dsq_peek(dsq);
		if (!p)
			return next;
		if (may_run_on(p, cpu)) {
			next.order = p->scx.dsq_vtime;
			return next;
		}
	}
	first_in_turn(dsq, &next);
	return next;
}

/* Who waits for a CPU: its own threads, and its domain's. Deadlines; 0: nobody. */
struct waiting {
	u64 own;      /* the first of its own queues */
	u64 queue;    /* the one that this is in */
	u64 first;    /* the first of its domain's that may run there */
	u64 limited;  /* of one who waits for this CPU and may not run everywhere */
	s32 cpu;
	u32 all;      /* its own threads that wait are to be put in order */
};

/* Looks at one of the CPU's own queues. Of its servers' at those without a budget: the others' turn is found before. Global, as find_waiting() is. */
__noinline int find_own(struct waiting *waiting, u32 at)
{
	struct reservation *r = waiting && at ? reservation_at(waiting->cpu) : NULL;
	struct server_slot *s = NULL;

	if (!waiting)
		return 0;
	u64 queue = own_queue(waiting->cpu, at);
	if (r)
		s = server_at(r->server[bounded(at - 1, CPU_SERVERS)]);
	if (!queue || (s && r && !s->ended && server_active(&s->now, r->critical)))
		return 0;
	struct next next = next_of_queue(queue, waiting->cpu, waiting->all);
	u64 order = next.order;
	if (order && (!waiting->own || order_earlier(order, waiting->own))) {
		waiting->own = order;
		waiting->queue = queue;
	}
	return 0;
}

/* Global, so that the verifier looks at it once. */
__noinline int find_waiting(struct waiting *waiting, u32 index, u64 now)
{
	struct domain *d = domain_at(index);
	struct cpu_slot *slot = waiting ? cpu_at(waiting->cpu) : NULL;

	if (!waiting || !d || !slot)
		return 0;
	s32 cpu = waiting->cpu;
	struct next next = {};
	waiting->own = 0;
	waiting->all = slot->pinned && is_due(&turns[bounded(cpu, MAX_CPUS)].sorted_at, now);
	for (u32 at = 0; slot->pinned && at < OWN_QUEUES; at++)
		find_own(waiting, at);
	if (d->queued > d->starved)
		next = next_of_queue(ready_queue(index), cpu, is_due(&d->sorted_at, now));
	waiting->first = next.order;
	waiting->limited = waiting->own ?: next.limited ? next.order : 0;
	return 0;
}

/*
 * Takes a thread that waits in another domain, and is further behind than all that wait here or run (mine; 0: nobody does): whoever is furthest
 * behind goes first on every CPU, whatever domain it happened to come to. Within dispatch only. Global, as find_waiting() is.
 */
__noinline int take_behind(struct waiting *waiting, u32 other, u64 mine, u64 now)
{
	struct domain *o = domain_at(other);

	if (!waiting || !o || o->queued <= o->starved)
		return 0;
	if (waiting->own && (!mine || order_earlier(waiting->own, mine)))
		mine = waiting->own;
	if (waiting->first && (!mine || order_earlier(waiting->first, mine)))
		mine = waiting->first;
	park_queued(o, other);
	struct next next = next_of_queue(ready_queue(other), waiting->cpu, 0);
	if (!next.order || (mine && !order_earlier(next.order + SHARE_BEHIND, mine)))
		return 0;
	return take_first(ready_queue(other));
}

/* Those that wait in a CPU's pinned queue and were given a server since go to that one's. Within dispatch only. Global, as overdue() is. */
__noinline int join_servers(u32 cpu)
{
	struct reservation *r = reservation_at(cpu);
	struct bpf_iter_scx_dsq it;
	struct task_struct *p;

	if (!r)
		return 0;
	r->joined = 0;
	if (bpf_iter_scx_dsq_new(&it, pinned_queue(cpu), 0)) {
		bpf_iter_scx_dsq_destroy(&it);
		return 0;
	}
	while ((p = bpf_iter_scx_dsq_next(&it))) {
		struct thread *t = thread_of(p);
		u32 server = t ? server_of(t, p, cpu) : 0;
		if (server && move_ordered(&it, p, server_queue(server), p->scx.dsq_vtime)) {
			enter_server(t, p, cpu);
			note_queue(t, QUEUE_SERVER, server);
		}
	}
	bpf_iter_scx_dsq_destroy(&it);
	return 0;
}

/* What a CPU shows of the thread that runs there, and has just begun or got another turn. */
static __always_inline void show_running(struct thread *t, struct cpu_slot *slot, u64 now)
{
	u64 left = !t->by_share && t->usual > t->present ? t->usual - t->present : 0;

	if (t->light && t->present < FAIR_TURN)
		left = FAIR_TURN - t->present;
	slot->deadline = t->deadline;
	slot->until = now + (left < ORDER_BURST ? left : ORDER_BURST);
	slot->began = now;
	slot->pace = t->pace;
}

/* The same of one that has waited for too long: it runs for its short turn, whoever is light; else others would claim the CPU before it did anything. */
static __always_inline void show_starved(struct cpu_slot *slot, struct domain *d, u32 index, u64 now)
{
	slot->deadline = order_light(now);
	slot->until = now + FAIR_STARVED_SLICE;
	slot->began = now + FAIR_STARVED_SLICE - FAIR_TURN;
	start_patience(d, index, FAIR_STARVED_SLICE, now);
}

/* A thread gets another turn on its CPU. Global, as find_waiting() is. */
__noinline int go_on(struct thread *t, struct task_struct *p __arg_trusted, u32 cpu, u64 now)
{
	struct cpu_slot *slot = cpu_at(cpu);
	struct domain *d = t ? domain_at(t->domain) : NULL;

	if (!t || !slot || !d)
		return 0;
	weigh_again(t, p, cpu, now);
	begin_bound(t, d, cpu);
	enter_server(t, p, cpu);
	slot->kept++;
	show_running(t, slot, now);
	set_slice(p, FAIR_SLICE);
	begin_drawing(t, p, cpu, now);
	begin_serving(t, cpu);
	return 0;
}

/* Whether a thread that runs goes before the first of its server's queue. */
static __always_inline bool goes_before(struct thread *t, u32 server)
{
	u64 first = first_order(server_queue(server));

	return !first || !order_earlier(first, t->deadline);
}

SEC("struct_ops/dispatch")
void BPF_PROG(quell_dispatch, s32 cpu, struct task_struct *prev)
{
	struct cpu_slot *slot = cpu_at(cpu);
	u32 index = domain_index(cpu);
	struct domain *d = domain_at(index);
	struct thread *t = NULL;
	u64 now = time_ns(), until = 0, mine = 0;

	if (!slot || !d)
		return;
	turns[bounded(cpu, MAX_CPUS)].vacant = !prev;
	look_for_starved(d, index, now);
	if (prev && prev->scx.flags & SCX_TASK_QUEUED) {
		t = thread_of(prev);
		if (t) {
			spend(t, prev, false, now);
			update_deadline(t, now);
			mine = t->deadline;
			until = limited_until(t, now);
		}
	}
	/* It is parked when it is enqueued. */
	if (until)
		t = NULL;
	if (slot->pinned && limits.groups)
		park_own(cpu, index);
	park_queued(d, index);
	struct reservation *r = options.criticality ? reservation_at(cpu) : NULL;
	struct thread *served = NULL;
	if (r && r->count) {
		r->kicked = 0;
		if (r->joined)
			join_servers(cpu);
		u32 server = choose(cpu, (t && !t->served) || weighted_waits(cpu));
		if (server) {
			bool runs = t && t->served == server;
			if (!(runs && goes_before(t, server)) && take_first(server_queue(server)))
				return;
			if (runs) {
				go_on(t, prev, cpu, now);
				return;
			}
			/* It is on its way. */
			r->chosen = 0;
		}
		/* From here on it is the rest's turn. */
		if (t && is_served(t, r)) {
			served = t;
			t = NULL;
		}
	}
	struct thread *runs = t;
	if (options.share && t && makes_way(prev, cpu, d, index)) {
		t = NULL;
		if (slot->aside == GOES)
			runs = NULL;
	}
	u32 other = visit(slot, index);
	if (!options.share && other != index && balance(d, other))
		return;
	struct waiting waiting = { .cpu = cpu };
	find_waiting(&waiting, index, now);
	u64 earliest = waiting.own && waiting.first ? order_first(waiting.own, waiting.first) : waiting.own ?: waiting.first;
	if (t && (!earliest || order_earlier(mine, earliest)))
		earliest = mine;
	if (take_starved(d, index, earliest, now))
		return;
	if (options.share && other != index && take_behind(&waiting, other, t ? mine : 0, now))
		return;
	if (options.share && t && waiting.limited && moves_on(prev, t, waiting.limited, index, now))
		t = NULL;
	if (t && waiting.own && !order_earlier(waiting.own, mine))
		waiting.own = 0;
	if (t && waiting.first && !order_earlier(waiting.first, mine))
		waiting.first = 0;
	bool own_first = waiting.own && !(waiting.first && order_earlier(waiting.first, waiting.own));
	if (own_first && take_first(waiting.queue))
		return;
	if (waiting.first && take_first(ready_queue(index)))
		return;
	if (waiting.own && take_first(waiting.queue))
		return;
	t = runs;
	if (t)
		t->displaces = 0;
	if (!t) {
		/* Who was not looked at, as others could not run here. */
		if (d->queued && take_foreign(index))
			return;
		for (u32 i = 1; i < MAX_DOMAINS && i < options.domains; i++) {
			u32 other = index + i;
			if (other >= options.domains)
				other -= options.domains;
			if (take_foreign(other))
				return;
		}
		/* What waits may not run here. */
		if (r && r->count && r->best && take_first(server_queue(r->best)))
			return;
		t = served;
	}
	/* Nobody else, or nobody before it: another turn. */
	if (t)
		go_on(t, prev, cpu, now);
}

/*
 * A thread begins to run that a CPU which idled took from a queue. Linux 7.2 then does not bring that CPU's clock up to date when it next chooses
 * (local_dsq_post_enq() makes known that somebody is there while the CPU is choosing already, which asks for that): what the thread ran since the last tick,
 * up to 4 ms, would be counted as the next one's, or nobody's. So it chooses once more at once, when the clock is right by itself; the thread goes on.
 */
static __always_inline void mend_clock(struct cpu_slot *slot, u32 cpu)
{
	u64 *vacant = &turns[bounded(cpu, MAX_CPUS)].vacant;

	if (!*vacant)
		return;
	*vacant = 0;
	if (!slot->offline)
		scx_bpf_kick_cpu(cpu, 0);
}

SEC("struct_ops/running")
void BPF_PROG(quell_running, struct task_struct *p)
{
	u32 cpu = scx_bpf_task_cpu(p), index = domain_index(cpu);
	struct cpu_slot *slot = cpu_at(cpu);
	struct domain *d = domain_at(index);
	struct thread *t = thread_of(p);
	u64 now = time_ns();

	observe_running(p, cpu);
	if (!t || !slot || !d)
		return;
	if (t->queue)
		note_queue(t, QUEUE_NONE, 0);
	if (!t->load) {
		/*
		 * It did not come by way of select_cpu or enqueue: a setting was changed while it ran, or the
		 * kernel inserted it by itself (its migration is disabled).
		 */
		t->woke_at = now;
		t->age = 0;
		join(t, p, cpu, true, now);
		tell_light(t, p, now);
		update_deadline(t, now);
	} else if (change_domain(t, p, index, cpu, now)) {
		update_deadline(t, now);
	} else if (t->group && !options.share) {
		/* If a task of its group preempted it, its weight was found while that was ready; by now that may sleep. */
		weigh_again(t, p, cpu, now);
	}
	mend_clock(slot, cpu);
	t->running = 1;
	begin_bound(t, d, cpu);
	t->ran_at = now;
	t->limited_ns = limited_ns(t);
	t->parked_at = 0;
	/* The kernel lets it go on, but with a turn of its own length. */
	if (t->left && t->left < p->scx.slice)
		set_slice(p, t->left);
	begin_drawing(t, p, cpu, now);
	if (options.share)
		share_runs(t, p);
	slot->tid = p->pid;
	t->runs++;
	u64 wait = now > t->ready_at ? now - t->ready_at : 0;
	if (wait > t->worst_wait)
		t->worst_wait = wait;
	slot->runs++;
	slot->wait_ns += wait;
	if (wait > slot->worst_wait_ns) {
		slot->worst_wait_ns = wait;
		slot->worst_wait_tid = p->pid;
	}
	show_running(t, slot, now);
	if (wait > FAIR_STARVED)
		show_starved(slot, d, index, now);
	note_movable(slot, p);
	slot->aside = STAYS;
	turns[bounded(cpu, MAX_CPUS)].resumes = ORDER_NONE;
	begin_serving(t, cpu);
	/* It was put there before a server's thread woke. */
	struct reservation *r = options.criticality ? reservation_at(cpu) : NULL;
	if (r && r->count && r->chosen && r->chosen != r->charged && !kicks_in_vain(r) && !(p->flags & PF_KTHREAD))
		kick_for_budget(r, cpu);
}

SEC("struct_ops/stopping")
void BPF_PROG(quell_stopping, struct task_struct *p, bool runnable)
{
	u32 cpu = scx_bpf_task_cpu(p);
	struct cpu_slot *slot = cpu_at(cpu);
	struct thread *t = thread_of(p);
	u64 now = time_ns();

	observe_stopping(p, cpu, runnable);
	if (!t || !slot)
		return;
	end_charge(cpu);
	turns[bounded(cpu, MAX_CPUS)].resumes = runnable && p->scx.slice ? running_deadline(slot, now) : ORDER_NONE;
	slot->deadline = ORDER_NONE;
	if (!t->running)
		return;
	t->running = 0;
	spend(t, p, true, now);
	end_bound(cpu);
	t->left = runnable ? p->scx.slice : 0;
	if (runnable) {
		t->ready_at = now;
		return;
	}
	t->usual = urgency_usual(t->usual, t->present);
	t->known = 1;
	leave_load(t);
	leave_server(t);
	leave_group(t);
}

SEC("struct_ops/set_weight")
void BPF_PROG(quell_set_weight, struct task_struct *p, u32 weight)
{
	struct thread *t = thread_of(p);

	if (t)
		t->own_weight = weight;
}

/* Requests of the parent's that an average of the child's begins with. */
#define INHERITED 8

/* What is known of requests of the process that forks; it may become another program. */
static __always_inline void inherit(struct thread *t)
{
	struct task_struct *leader = bpf_get_current_task_btf()->group_leader;
	struct thread *first = leader ? thread_of(leader) : NULL;

	if (!first)
		return;
	t->requests = first->requests < INHERITED ? first->requests : INHERITED;
	t->request = first->request;
}

SEC("struct_ops/init_task")
s32 BPF_PROG(quell_init_task, struct task_struct *p, struct scx_init_task_args *args)
{
	struct thread *t = bpf_task_storage_get(&thread_states, p, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
	struct thread *parent = NULL;
	struct cgroup *cgroup = args->cgroup;

	if (!t)
		return -12; /* ENOMEM */
	if (args->fork)
		parent = thread_of(bpf_get_current_task_btf());
	t->ready_at = t->ran_at = time_ns();
	if (parent) {
		t->lag = hand_down(parent, t->ready_at);
		if (p->group_leader == p)
			inherit(t);
		t->usual = parent->usual;
		t->busy = parent->busy;
		t->tenant = parent->tenant;
	} else {
		t->known = 1;
	}
	t->domain = NO_DOMAIN;
	if (cgroup && cgroup->level > 0 && cgroup->kn)
		t->cgroup = cgroup->kn->id;
	t->group = due_group(t);
	return 0;
}

SEC("struct_ops/enable")
void BPF_PROG(quell_enable, struct task_struct *p)
{
	struct thread *t = thread_of(p);

	if (t)
		t->own_weight = p->scx.weight;
}

SEC("struct_ops/disable")
void BPF_PROG(quell_disable, struct task_struct *p)
{
	struct thread *t = thread_of(p);

	if (!t)
		return;
	note_queue(t, QUEUE_NONE, 0);
	leave_load(t);
	if (options.share)
		leave_place(t, p->pid);
	leave_server(t);
	leave_group(t);
	t->running = 0;
	t->drawing = 0;
}

/* A higher class took the CPU: what waits in its local queue can run elsewhere. */
SEC("struct_ops/cpu_release")
void BPF_PROG(quell_cpu_release, s32 cpu, struct scx_cpu_release_args *args)
{
	/* The stopper is done in no time. */
	if (args->reason != bpf_core_enum_value(enum scx_cpu_preempt_reason, SCX_CPU_PREEMPT_STOP) &&
	    bpf_ksym_exists(scx_bpf_reenqueue_local))
		scx_bpf_reenqueue_local();
}

/*
 * A CPU is marked idle (idle), or not any more. What was queued before, nobody would have woken it for. Not so one that
 * goes offline, see goes_offline().
 */
SEC("struct_ops/update_idle")
void BPF_PROG(quell_update_idle, s32 cpu, bool idle)
{
	struct cpu_slot *slot = cpu_at(cpu);
	struct domain *d = domain_at(domain_index(cpu));

	observe_idle(cpu, idle);
	if (idle)
		idle_charge(cpu);
	/* It would take back what another CPU was told to take. */
	bool left = slot && slot->aside == GONE;
	if (slot)
		slot->aside = STAYS;
	if (options.share && idle && d && slot && !slot->offline)
		use_room(d, domain_index(cpu), left);
	if (left && idle)
		return;
	if (!idle || !slot || !d || slot->offline || !(d->queued || slot->pinned))
		return;
	slot->rescued++;
	scx_bpf_kick_cpu(cpu, SCX_KICK_IDLE);
}

SEC("struct_ops/cpu_online")
void BPF_PROG(quell_cpu_online, s32 cpu)
{
	struct cpu_slot *slot = cpu_at(cpu);
	struct domain *d = domain_at(domain_index(cpu));

	if (slot && slot->offline) {
		slot->offline = 0;
		if (d)
			__sync_fetch_and_add(&d->online, 1);
	}
}

SEC("struct_ops/cpu_offline")
void BPF_PROG(quell_cpu_offline, s32 cpu)
{
	struct cpu_slot *slot = cpu_at(cpu);
	struct domain *d = domain_at(domain_index(cpu));

	if (slot && !slot->offline) {
		slot->offline = 1;
		slot->deadline = ORDER_NONE;
		if (d)
			__sync_fetch_and_add(&d->online, -1);
	}
}

SEC("struct_ops/cgroup_init")
s32 BPF_PROG(quell_cgroup_init, struct cgroup *cgroup, struct scx_cgroup_init_args *args)
{
	struct group group = { .weight = args->weight << WEIGHT_SHIFT };
	u64 id;

	if (cgroup->level == 0)
		return 0;
	id = cgroup->kn->id;
	if (cgroup->level > GROUP_DEPTH)
		fail("cgroup %llu lies %d levels deep: weights and limits are followed for %d", id, cgroup->level, GROUP_DEPTH);
	if (cgroup->level > 1) {
		struct cgroup *parent = bpf_cgroup_ancestor(cgroup, cgroup->level - 1);
		if (parent) {
			group.parent = parent->kn->id;
			bpf_cgroup_release(parent);
		}
	}
	if (bpf_core_field_exists(args->bw_quota_us))
		set_limit(&group, args->bw_period_us, args->bw_quota_us, args->bw_burst_us, time_ns());
	return bpf_map_update_elem(&groups, &id, &group, BPF_ANY);
}

SEC("struct_ops/cgroup_exit")
void BPF_PROG(quell_cgroup_exit, struct cgroup *cgroup)
{
	u64 id = cgroup->kn->id;
	struct group *group = bpf_map_lookup_elem(&groups, &id);

	if (group)
		set_limit(group, 0, -1, 0, 0);
	end_group(id);
}

SEC("struct_ops/cgroup_set_weight")
void BPF_PROG(quell_cgroup_set_weight, struct cgroup *cgroup, u32 weight)
{
	set_weight(cgroup->kn->id, weight << WEIGHT_SHIFT);
}

/* Since Linux 6.19. A cgroup that is idle no more has the usual weight, whatever it had before: so says its cpu.weight. */
SEC("struct_ops/cgroup_set_idle")
void BPF_PROG(quell_cgroup_set_idle, struct cgroup *cgroup, bool idle)
{
	set_weight(cgroup->kn->id, idle ? WEIGHT_IDLE : WEIGHT_ONE);
}

/* Since Linux 6.17. */
SEC("struct_ops/cgroup_set_bandwidth")
void BPF_PROG(quell_cgroup_set_bandwidth, struct cgroup *cgroup, u64 period_us, u64 quota_us, u64 burst_us)
{
	u64 id = cgroup->kn->id;
	struct group *group = bpf_map_lookup_elem(&groups, &id);

	if (group)
		set_limit(group, period_us, quota_us, burst_us, time_ns());
}

SEC("struct_ops/cgroup_move")
void BPF_PROG(quell_cgroup_move, struct task_struct *p, struct cgroup *from, struct cgroup *to)
{
	struct thread *t = thread_of(p);

	if (!t)
		return;
	t->cgroup = to->level > 0 ? to->kn->id : 0;
	t->limit_seen = limits.changes - 1;
	if (t->group != due_group(t))
		change_group(t);
}

SEC("struct_ops.s/init")
s32 BPF_PROG(quell_init)
{
	u64 now = time_ns();

	/* Options are constants to the verifier: it need not go through CPUs that there are not. */
	for (u32 cpu = 0; cpu < MAX_CPUS && cpu < options.cpus; cpu++) {
		u32 index = domain_index(cpu);
		struct domain *d = domain_at(index);
		if (!d)
			continue;
		u32 at = d->size;
		if (at >= DOMAIN_CPUS)
			return -22; /* EINVAL: the loader's error */
		d->cpu[bounded(at, DOMAIN_CPUS)] = cpu;
		d->size = at + 1;
		if (options.domain_of[bounded(cpu, MAX_CPUS)] & OFFLINE)
			cpus[bounded(cpu, MAX_CPUS)].offline = 1;
		else
			d->online++;
		s32 error = scx_bpf_create_dsq(pinned_queue(cpu), -1);
		if (!error)
			error = init_timer(&steps, cpu, on_step);
		if (!error && options.criticality)
			error = init_timer(&budgets, cpu, on_budget);
		if (error)
			return error;
	}
	for (u32 index = 0; index < MAX_DOMAINS && index < options.domains; index++) {
		struct domain *d = domain_at(index);
		if (!d)
			break;
		d->clock = FAIR_CLOCK_START;
		d->served_at = now;
		s32 error = scx_bpf_create_dsq(ready_queue(index), -1);
		if (!error)
			error = scx_bpf_create_dsq(starved_queue(index), -1);
		if (!error)
			error = scx_bpf_create_dsq(parked_queue(index), -1);
		if (!error)
			error = init_timer(&patience, index, on_patience);
		if (!error)
			error = init_timer(&releases, index, on_release);
		if (!error && options.share)
			error = init_timer(&rooms, index, on_room);
		if (error)
			return error;
	}
	return 0;
}

SEC("struct_ops/exit")
void BPF_PROG(quell_exit, struct scx_exit_info *info)
{
	exit_record.code = info->exit_code;
	bpf_probe_read_kernel_str(exit_record.reason, sizeof(exit_record.reason), info->reason);
	bpf_probe_read_kernel_str(exit_record.message, sizeof(exit_record.message), info->msg);
	/* Last, so that whoever sees it finds the rest written. */
	__sync_lock_test_and_set(&exit_record.kind, info->kind);
}

SEC("struct_ops/dump")
void BPF_PROG(quell_dump, struct scx_dump_ctx *context)
{
	for (u32 index = 0; index < MAX_DOMAINS && index < options.domains; index++) {
		struct domain *d = domain_at(index);
		if (!d)
			break;
		dump_line("domain %d: %d ready, %d of them for too long; load %llu on %d CPUs\n", index, d->queued,
			  d->starved, d->load, d->online);
	}
}

/* What the agent wants of a thread, or wants no more (all zero). Returns 0 or a negative error. */
SEC("syscall")
int quell_set_thread(struct thread_setting *setting)
{
	struct task_struct *p = bpf_task_from_pid(setting->tid);
	int result = -3; /* ESRCH */

	if (!p)
		return result;
	struct thread *t = thread_of(p);
	if (t) {
		t->tenant = setting->tenant;
		t->server = setting->server;
		join_server(t->server);
		t->set_weight = setting->weight;
		t->latency = setting->latency_ns;
		result = 0;
	}
	bpf_task_release(p);
	return result;
}

/*
 * A server of a CPU, or another promise for one from its next period on, or one no more: its threads have weights again. Also what a
 * CPU keeps for all others. Returns 0 or a negative error.
 */
SEC("syscall")
int quell_set_server(struct server_setting *setting)
{
	struct reservation *r = setting->cpu < options.cpus ? reservation_at(setting->cpu) : NULL;
	struct server_slot *s = server_at(setting->server);

	if (!options.criticality || !r || (setting->server && !s))
		return -22; /* EINVAL */
	if (!s) {
		r->rest.terms = setting->terms;
		return 0;
	}
	bool there = find_server(setting->cpu, setting->server) < CPU_SERVERS;
	if (!setting->terms.period) {
		s->ended = there;
		return 0;
	}
	if (!there) {
		if (s->ready)
			return -16; /* EBUSY: another CPU's until those sleep or have moved */
		if (find_server(setting->cpu, 0) == CPU_SERVERS)
			return -28; /* ENOSPC */
		s32 error = scx_bpf_create_dsq(server_queue(setting->server), -1);
		if (error && error != -17) /* EEXIST: of one that ended */
			return error;
		s->cpu = setting->cpu;
		s->now = (struct server){};
	}
	s->version++;
	s->next = setting->terms;
	s->version++;
	s->ended = 0;
	if (!there) {
		r->server[bounded(find_server(setting->cpu, 0), CPU_SERVERS)] = setting->server;
		__sync_fetch_and_add(&r->count, 1);
	}
	return 0;
}

/* A tenant without a cgroup that the agent knows of, or one no more. Returns 0 or a negative error. */
SEC("syscall")
int quell_set_tenant(struct tenant_setting *setting)
{
	struct group group = { .weight = setting->weight << WEIGHT_SHIFT };
	u64 id = TENANT_GROUP | setting->tenant;

	if (!setting->weight)
		end_group(id);
	else if (bpf_map_lookup_elem(&groups, &id))
		set_weight(id, group.weight);
	else
		return bpf_map_update_elem(&groups, &id, &group, BPF_ANY);
	return 0;
}

SEC(".struct_ops.link")
struct sched_ext_ops quell_ops = {
	.select_cpu = (void *)quell_select_cpu,
	.enqueue = (void *)quell_enqueue,
	.dispatch = (void *)quell_dispatch,
	.running = (void *)quell_running,
	.stopping = (void *)quell_stopping,
	.set_weight = (void *)quell_set_weight,
	.init_task = (void *)quell_init_task,
	.enable = (void *)quell_enable,
	.disable = (void *)quell_disable,
	.update_idle = (void *)quell_update_idle,
	.cpu_release = (void *)quell_cpu_release,
	.cpu_online = (void *)quell_cpu_online,
	.cpu_offline = (void *)quell_cpu_offline,
	.cgroup_init = (void *)quell_cgroup_init,
	.cgroup_exit = (void *)quell_cgroup_exit,
	.cgroup_set_weight = (void *)quell_cgroup_set_weight,
	.cgroup_set_idle = (void *)quell_cgroup_set_idle,
	.cgroup_set_bandwidth = (void *)quell_cgroup_set_bandwidth,
	.cgroup_move = (void *)quell_cgroup_move,
	.init = (void *)quell_init,
	.exit = (void *)quell_exit,
	.dump = (void *)quell_dump,
	.flags = SCX_OPS_KEEP_BUILTIN_IDLE | SCX_OPS_ENQ_LAST | SCX_OPS_ENQ_EXITING,
	.timeout_ms = 20000,
	.name = "quell",
};

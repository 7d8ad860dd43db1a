//! What holds of every plan, whatever the cluster and the method.

use andreas_model::{GpuCount, Seconds, Time, Watts};
use andreas_planner::{JobState, Placement, Plan, Preemption, Snapshot, SnapshotError};
use proptest::prelude::*;

use crate::methods::{self, Method};
use crate::world::lowered::{draws_too_much, lowered, saves_for_the_budget};
use crate::world::order::{audit_order, carried_out_in_part, use_now};
use crate::world::{assignments, audit, carried_out, snapshots};

/// One decision without memory.
fn decide(snapshot: &Snapshot, method: Method) -> Result<Plan, SnapshotError> {
    methods::deciding(method, 7, 30)(snapshot)
}

fn any_method() -> impl Strategy<Value = Method> {
    prop::sample::select(methods::all())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, max_shrink_iters: 400, ..ProptestConfig::default() })]

    #[test]
    fn no_plan_takes_what_is_not_there(snapshot in snapshots(), method in any_method()) {
        let plan = decide(&snapshot, method).unwrap();
        audit(&snapshot, &plan)?;
    }

    #[test]
    fn what_runs_fits_while_plans_are_carried_out_bit_by_bit(
        mut snapshot in prop_oneof![snapshots(), lowered()],
        method in any_method(),
        happens in prop::collection::vec(any::<u64>(), 1..6),
    ) {
        let mut deciding = methods::deciding(method, 7, 30);
        for bits in happens {
            let plan = deciding(&snapshot).unwrap();
            audit_order(&snapshot, &plan, bits)?;
            let next = carried_out_in_part(&snapshot, &plan, bits);
            let ((fits, watts), (still_fits, more)) = (use_now(&snapshot), use_now(&next));
            prop_assert!(!fits || still_fits, "over capacity or quota: {:#?}", plan.jobs);
            if let Some(allowed) = plan.allowed_power {
                prop_assert!(more <= watts.max(allowed.0) + 1e-3, "{more} W of {allowed} after {watts} W: {:#?}", plan.jobs);
            }
            snapshot = next;
        }
    }

    #[test]
    fn the_order_of_the_input_never_shows(
        (snapshot, shuffled) in snapshots().prop_flat_map(|s| {
            let (nodes, jobs) = (Just(s.nodes.clone()).prop_shuffle(), Just(s.jobs.clone()).prop_shuffle());
            let other = s.clone();
            (Just(s), (nodes, jobs).prop_map(move |(nodes, jobs)| Snapshot { nodes, jobs, ..other.clone() }))
        }),
        method in any_method(),
    ) {
        prop_assert_eq!(decide(&snapshot, method), decide(&shuffled, method));
    }

    #[test]
    fn a_plan_carried_out_is_kept(snapshot in snapshots(), method in any_method()) {
        let first = decide(&snapshot, method).unwrap();
        prop_assume!(!saves_for_the_budget(&snapshot, &first));
        let next = carried_out(&snapshot, &first);
        let second = decide(&next, method).unwrap();
        prop_assert_eq!(assignments(&first), assignments(&second));
    }

    #[test]
    fn the_order_of_a_gangs_nodes_means_nothing(snapshot in snapshots(), method in any_method()) {
        let snapshot = carried_out(&snapshot, &decide(&snapshot, method).unwrap());
        let mut reversed = snapshot.clone();
        for job in &mut reversed.jobs {
            match &mut job.state {
                JobState::Waiting => {}
                JobState::Starting { target: held, .. } | JobState::Running { placement: held, .. } => held.nodes.reverse(),
                JobState::Stopping { holds, target, .. } => {
                    holds.nodes.reverse();
                    target.iter_mut().for_each(|target| target.nodes.reverse());
                }
            }
        }
        let (one, other) = (decide(&snapshot, method).unwrap(), decide(&reversed, method).unwrap());
        prop_assert_eq!(one.cost, other.cost);
        for (id, job) in &one.jobs {
            let (a, b) = (job.decision.placement(), other.jobs[id].decision.placement());
            let same = match (a, b) {
                (Some(a), Some(b)) => a.gpu_type == b.gpu_type && a.limit == b.limit && a.same_gpus(b),
                (a, b) => a.is_none() && b.is_none(),
            };
            prop_assert!(same, "{id}: {a:?} became {b:?}");
        }
    }

    #[test]
    fn who_is_stopped_for_a_lower_budget_gets_what_the_next_plan_would_give_it(snapshot in lowered(), method in any_method()) {
        let first = decide(&snapshot, method).unwrap();
        audit(&snapshot, &first)?;
        prop_assume!(!saves_for_the_budget(&snapshot, &first));
        let second = decide(&carried_out(&snapshot, &first), method).unwrap();
        prop_assert_eq!(assignments(&first), assignments(&second));
    }

    #[test]
    fn who_may_not_be_moved_is_stopped_for_a_lower_budget_or_keeps_its_gpus(snapshot in lowered(), method in any_method()) {
        let plan = decide(&snapshot, method).unwrap();
        for job in snapshot.jobs.iter().filter(|job| !job.movable) {
            let (held, promised) = match &job.state {
                JobState::Waiting => continue,
                JobState::Starting { target: held, .. } | JobState::Running { placement: held, .. } => (held, None),
                JobState::Stopping { holds, target, .. } => (holds, target.as_ref()),
            };
            let hardware = |p: &Placement| (p.gpu_type.clone(), p.nodes.len(), p.gpus_per_node);
            let goes = plan.jobs[&job.id].decision.placement().map(hardware);
            let kept = goes.is_none() || goes == Some(hardware(held)) || goes == promised.map(hardware);
            prop_assert!(kept, "{} got {:?}", job.id, plan.jobs[&job.id].decision);
        }
    }

    #[test]
    fn only_the_budget_touches_a_job_that_may_not_be_touched(mut snapshot in snapshots(), method in any_method()) {
        let mut plan = decide(&snapshot, method).unwrap();
        if draws_too_much(&snapshot, &plan) {
            snapshot.budget = None;
            plan = decide(&snapshot, method).unwrap();
        }
        for job in &snapshot.jobs {
            let (now, since) = match &job.state {
                JobState::Running { placement, since } => (placement, *since),
                JobState::Starting { target, .. } | JobState::Stopping { target: Some(target), .. } => (target, snapshot.now),
                _ => continue,
            };
            let running = matches!(job.state, JobState::Running { .. });
            let settled = since + job.min_run <= snapshot.now;
            let moves = !methods::moves_nothing(method);
            let free = running && moves && job.movable && settled
                && job.preemption == Preemption::Allowed;
            prop_assert!(free || plan.jobs[&job.id].decision.placement() == Some(now), "{} was touched", job.id);
        }
    }

    #[test]
    fn a_snapshot_that_was_written_down_gives_the_same_plan(snapshot in snapshots(), method in any_method()) {
        let text = serde_json::to_string(&snapshot).unwrap();
        let read: Snapshot = serde_json::from_str(&text).unwrap();
        prop_assert_eq!(&read, &snapshot);
        let first = decide(&read, method).unwrap();
        prop_assert_eq!(&decide(&snapshot, method).unwrap(), &first);
        let text = serde_json::to_string(&first).unwrap();
        prop_assert_eq!(serde_json::from_str::<Plan>(&text).unwrap(), first);
    }

    #[test]
    fn absurd_numbers_are_refused_by_name_or_planned(
        mut snapshot in snapshots(),
        method in any_method(),
        what in 0..9_u8,
        number in prop::num::f64::ANY,
    ) {
        match what {
            0 => snapshot.now = Time(number),
            1 => snapshot.restart = Seconds(number),
            2 => snapshot.lateness.turnaround_share = number,
            3 => snapshot.nodes.iter_mut().for_each(|n| n.host_busy.0 = number),
            4 => snapshot.jobs.iter_mut().for_each(|j| j.epochs_left = number),
            5 => snapshot.jobs.iter_mut().for_each(|j| j.deadline = Some(Time(number))),
            6 => snapshot.jobs.iter_mut().for_each(|j| j.weight.0 = number),
            7 => snapshot.jobs.iter_mut().for_each(|j| j.restarts_last_day = number as u32),
            _ => snapshot.lateness.late_fixed = Seconds(number),
        }
        match decide(&snapshot, method) {
            Ok(plan) => {
                prop_assert!(plan.cost.is_finite());
                prop_assert!(plan.jobs.values().all(|j| j.cost.is_finite() && j.energy.is_finite()));
            }
            Err(error) => prop_assert!(!error.field.is_empty()),
        }
    }

    #[test]
    fn facts_that_cannot_be_are_planned_around(
        mut snapshot in snapshots(),
        method in any_method(),
        chaos in prop::collection::vec((0..10_usize, 1..1025_u32, 0..4_u8, prop::option::of(1.0..500.0_f64)), 14),
        huge in any::<bool>(),
    ) {
        // Given jobs that hold more than there is, on nodes that may have gone, of types nobody knows,
        for (job, (node, gpus, state, limit)) in snapshot.jobs.iter_mut().zip(&chaos) {
            let placement = Placement {
                gpu_type: ["A100", "T4", "unknown"][node % 3].into(),
                nodes: vec![format!("n{node:02}").into(), format!("n{:02}", node + 1).into()],
                gpus_per_node: GpuCount(*gpus),
                limit: limit.map(Watts),
            };
            let since = snapshot.now;
            job.state = match state {
                0 => JobState::Running { placement, since },
                1 => JobState::Starting { target: placement, since },
                2 => JobState::Stopping { holds: placement.clone(), target: Some(placement), gone_by: since },
                _ => JobState::Waiting,
            };
            if huge {
                job.worker.fixed.cpu_milli = Some(u64::MAX);
                job.worker.quota_per_gpu.insert("requests.nvidia.com/gpu".into(), u64::MAX);
                job.estimates = vec![].into();
            }
        }
        // then there is a plan, and who is left alone is left where it is.
        let plan = decide(&snapshot, method).unwrap();
        prop_assert!(plan.cost.is_finite() && plan.budgeted_power.is_finite());
        prop_assert_eq!(plan.jobs.len(), snapshot.jobs.len());
        for job in &snapshot.jobs {
            if let (JobState::Starting { target, .. }, None) = (&job.state, &snapshot.budget) {
                prop_assert_eq!(plan.jobs[&job.id].decision.placement(), Some(target));
            }
        }
    }
}

//! Plans compared with the optima of a mixed integer program, by an external solver.
//!
//! The program has one binary per job and place. It counts GPUs, resources, quotas and watts by itself. It
//! takes from the planner only the cost of one job in one place. Its solution is evaluated as a partial plan,
//! which removes the solver's tolerance.

use std::cell::Cell;

use good_lp::{Expression, Solution, SolverModel, Variable, constraint, microlp, variable, variables};
use proptest::test_runner::{TestCaseError, TestRunner};

use super::*;

/// Relative difference below which costs are equal; the solver's tolerance.
const EQUAL: f64 = 1e-6;

/// A place of a job, and the variable that selects it.
struct PlacementVariable {
    job: usize,
    assignment: Assignment,
    taken: Variable,
}

/// All sets of `count` nodes.
fn gangs(nodes: &[u32], count: usize) -> Vec<Vec<u32>> {
    if count == 0 {
        return vec![Vec::new()];
    }
    let mut all = Vec::new();
    for (i, node) in nodes.iter().enumerate() {
        for mut rest in gangs(&nodes[i + 1..], count - 1) {
            rest.insert(0, *node);
            all.push(rest);
        }
    }
    all
}

/// The cheapest plan of the mixed integer program: a place for each job that has one.
fn solve(step: &Step<'_, '_>, base: &[Option<Assignment>]) -> Vec<Option<Assignment>> {
    let instance = step.instance;
    let mut vars = variables!();
    let mut ways: Vec<PlacementVariable> = Vec::new();
    for (job, data) in instance.jobs.iter().enumerate().filter(|(job, _)| base[*job].is_none()) {
        for (config, of) in data.configs.iter().enumerate() {
            let current = step.current[job].as_ref();
            for gang in gangs(&instance.types[of.kind].nodes, of.nodes as usize) {
                let nodes =
                    if let [node] = gang[..] { Nodes::One(node) } else { Nodes::Many(gang.clone().into()) };
                let assignment = Assignment { config, nodes };
                let stays = current == Some(&assignment);
                let admitted = gang.iter().all(|n| instance.admits(data.admits, *n));
                if stays || of.offered && admitted {
                    ways.push(PlacementVariable { job, assignment, taken: vars.add(variable().binary()) });
                }
            }
        }
    }
    // Whether a node is used: at least the largest of its placement variables.
    let mut each_node = || -> Vec<Variable> {
        instance.nodes.iter().map(|_| vars.add(variable().min(0.0).max(1.0))).collect()
    };
    let busy = each_node();
    // The same by lower window, of the jobs that could not be gone by then.
    let busy_later: Vec<Vec<Variable>> = instance.lower_windows.iter().map(|_| each_node()).collect();
    let on = |assignment: &Assignment, node: usize| {
        assignment.nodes.as_slice().iter().filter(|n| **n as usize == node).count() as f64
    };
    let gpus =
        |job: usize, assignment: &Assignment| instance.jobs[job].configs[assignment.config].gpus as f64;
    let settled =
        || base.iter().enumerate().filter_map(|(job, assignment)| Some((job, assignment.as_ref()?)));

    // Scales costs to about a thousand in any currency.
    let scale = 1e3 / step.wait.iter().map(|w| w.abs()).sum::<f64>().max(1e-9);
    let mut cost = Expression::from(0.0);
    for way in &ways {
        cost += way.taken * (scale * (step.cost(way.job, &way.assignment) - step.wait[way.job]));
    }
    for (n, node) in instance.nodes.iter().enumerate().filter(|(_, node)| node.free_gpus > 1) {
        // A used node costs its empty part: the whole node less its used part.
        let (one, all) =
            (step.cost_table.fragmentation(instance, n as u32, 1) * scale, node.free_gpus as f64);
        let whole = one * all / (all - 1.0);
        cost += busy[n] * whole;
        for way in &ways {
            cost -= way.taken * (whole / all * on(&way.assignment, n) * gpus(way.job, &way.assignment));
        }
    }
    let mut model = vars.minimise(cost).using(microlp);
    for job in 0..instance.jobs.len() {
        let one: Expression = ways.iter().filter(|w| w.job == job).map(|w| w.taken).sum();
        model = model.with(constraint!(one <= 1.0));
    }
    for (n, node) in instance.nodes.iter().enumerate() {
        let used: f64 = settled().map(|(job, assignment)| on(assignment, n) * gpus(job, assignment)).sum();
        let here = || ways.iter().filter(|w| on(&w.assignment, n) > 0.0);
        let more: Expression = here().map(|w| w.taken * gpus(w.job, &w.assignment)).sum();
        model = model.with(constraint!(more <= node.free_gpus as f64 - used));
        for way in here() {
            model = model.with(constraint!(busy[n] >= way.taken));
        }
        if used > 0.0 {
            model = model.with(constraint!(busy[n] >= 1.0));
        }
        for what in 0..instance.kinds {
            let of = |job: usize, assignment: &Assignment| -> f64 {
                let demand = instance.jobs[job].node_demand.iter().filter(|d| d.what == what);
                let each: f64 = demand
                    .map(|d| d.of_worker(instance.jobs[job].configs[assignment.config].gpus) as f64)
                    .sum();
                each * on(assignment, n)
            };
            let free = instance.resources[n * instance.kinds + what] as f64;
            let left = free - settled().map(|(job, assignment)| of(job, assignment)).sum::<f64>();
            let unit = left.abs().max(1.0);
            let more: Expression = here().map(|w| w.taken * (of(w.job, &w.assignment) / unit)).sum();
            model = model.with(constraint!(more <= left / unit));
        }
    }
    for (what, quota) in instance.quotas.iter().enumerate() {
        let of = |job: usize, assignment: &Assignment| -> f64 {
            let data = &instance.jobs[job];
            let demand = data.quota_demand.iter().filter(|d| d.what == what);
            demand.map(|d| d.of_job(&data.configs[assignment.config]) as f64).sum()
        };
        let left = *quota as f64 - settled().map(|(job, assignment)| of(job, assignment)).sum::<f64>();
        let more: Expression = ways.iter().map(|w| w.taken * of(w.job, &w.assignment)).sum();
        model = model.with(constraint!(more <= left));
    }
    let present = instance.allowed_mw.map(|allowed| (0, allowed, &busy));
    let later = instance.lower_windows.iter().zip(&busy_later).enumerate();
    let later = later.map(|(window, (lower, busy))| (window + 1, lower.most_mw, busy));
    for (window, allowed, busy) in present.into_iter().chain(later) {
        let meets = |job: usize| instance.jobs[job].lower_windows >= window;
        let ways = || ways.iter().filter(|way| meets(way.job));
        let settled = || settled().filter(|(job, _)| meets(*job));
        for (n, busy) in busy.iter().enumerate() {
            for way in ways().filter(|way| on(&way.assignment, n) > 0.0) {
                model = model.with(constraint!(*busy >= way.taken));
            }
            if settled().any(|(_, assignment)| on(assignment, n) > 0.0) {
                model = model.with(constraint!(*busy >= 1.0));
            }
        }
        // Draw less the replaced idle draw, in kilowatts; a used node adds its overhead.
        let draw = |job: usize, assignment: &Assignment| {
            let config = &instance.jobs[job].configs[assignment.config];
            (config.draw_mw() - instance.types[config.kind].idle_mw * i128::from(config.total_gpus())) as f64
                / 1e6
        };
        let left = (allowed - instance.floor_mw) as f64 / 1e6
            - settled().map(|(job, assignment)| draw(job, assignment)).sum::<f64>();
        let jobs: Expression = ways().map(|w| w.taken * draw(w.job, &w.assignment)).sum();
        let overhead = busy.iter().zip(&instance.nodes).map(|(b, n)| *b * (n.overhead_mw as f64 / 1e6));
        model = model.with(constraint!(jobs + overhead.sum::<Expression>() <= left));
    }
    let mut assignments = base.to_vec();
    let solution = model.solve().expect("all jobs waiting is a solution");
    for way in ways {
        if solution.value(way.taken) > 0.5 {
            assignments[way.job] = Some(way.assignment);
        }
    }
    assignments
}

#[test]
fn the_optimum_is_that_of_a_mixed_integer_program() {
    let config = ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() };
    let [solved, optimal, proven, moved] = [(); 4].map(|()| Cell::new(0));
    let count = |counter: &Cell<u32>, yes: bool| counter.set(counter.get() + u32::from(yes));
    let mut runner = TestRunner::new(config);
    let outcome = runner.run(&world::snapshots(), |snapshot| {
        // Given up to five jobs, gangs among them, on up to four nodes, some of them running; under budgets and quotas,
        let mut small = smaller(snapshot, 5, 4);
        for job in &mut small.jobs {
            // A restart on the same nodes counts once, which needs another program.
            if let JobState::Stopping { .. } = job.state {
                job.state = JobState::Waiting;
            }
        }
        decision(&small, |context, current, movable| {
            let instance = context.instance;
            if above_budget(instance) {
                return Ok(());
            }
            let base = PartialPlan::after(instance, current, movable);
            if !base.ledger.within_budget(instance) {
                // Infeasible even with nothing placed.
                return Ok(());
            }
            // when the program is solved,
            let step = context.step(current, &base).with_options(&base, Vec::new());
            let step = dual::priced_step(step, &base, 0.0);
            let open: Vec<bool> = base.assignments.iter().map(Option::is_none).collect();
            let assignments = solve(&step, &base.assignments);
            let mut theirs = SearchState::new(&step, base, &open);
            for (job, assignment) in assignments.iter().enumerate().filter(|(job, _)| open[*job]) {
                if let Some(assignment) = assignment {
                    let fits = theirs.partial.ledger.fits(instance, job, assignment);
                    prop_assert!(fits.is_ok(), "the program's plan does not fit: {fits:?}");
                    theirs.assign(job, assignment.clone());
                }
            }
            let theirs = theirs.total();
            // then no bound exceeds it, a proven plan costs as much, and no plan costs less.
            let found = context.round(current, movable, Vec::new());
            let ours = SearchState::new(&step, partial(instance, &found.assignments), &open).total();
            let near = EQUAL * theirs.abs().max(1e-9);
            prop_assert!(found.bound <= theirs + near, "bound {} above the optimum {theirs}", found.bound);
            prop_assert!(ours >= theirs - near, "{ours} below the optimum {theirs}");
            count(&solved, true);
            count(&moved, open.iter().zip(current).any(|(open, current)| *open && current.is_some()));
            count(&optimal, ours <= theirs + near);
            let proof = ours - found.bound <= near;
            count(&proven, proof);
            if proof {
                prop_assert!(ours <= theirs + near, "{ours} called optimal, {theirs} is possible");
            }
            Ok::<(), TestCaseError>(())
        })
    });
    outcome.unwrap();
    // Nearly all are optimal, many are proven, and running jobs are included.
    let counts = [solved, optimal, proven, moved].map(|counter| counter.get());
    let [solved, optimal, proven, moved] = counts;
    println!("{solved} solved, {optimal} optimal, {proven} proven, {moved} with running jobs");
    assert!(solved > 200 && optimal * 100 > solved * 95 && proven * 5 > solved * 2 && moved > 20);
}

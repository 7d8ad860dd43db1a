//! Each policy's rule, on instances small enough to check by hand.

use andreas_model::{CostRate, EnergyPrice, GpuCount, Seconds, StepFunction, Time, Watts};

use andreas_planner::{
    Estimate, GpuTypeInfo, Job, JobPlan, JobState, Lateness, LimitEffect, Node, Placement, Plan, PowerBudget,
    Preemption, Snapshot,
};

use crate::{JobMemory, Memory, Method, Options, Scheduler, Tickets};

const HOUR: f64 = 3600.0;

/// Nodes with eight GPUs of one type that draw 50 W idle.
fn cluster(nodes: usize) -> Snapshot {
    Snapshot {
        now: Time(0.0),
        tariff: StepFunction::flat(EnergyPrice(1e-7)),
        budget: None,
        lateness: Lateness::default(),
        restart: Seconds(30.0),
        wear: Seconds::ZERO,
        gpu_types: vec![kind("A100")],
        nodes: (0..nodes).map(|i| node(&format!("n{i}"), "A100")).collect(),
        namespaces: vec![],
        jobs: vec![],
        prices: None,
        intended: vec![],
    }
}

fn kind(name: &str) -> GpuTypeInfo {
    GpuTypeInfo { name: name.into(), idle: Watts(50.0), max: Watts(400.0) }
}

fn node(name: &str, gpu_type: &str) -> Node {
    Node::new(name.into(), gpu_type.into(), GpuCount(8))
}

/// A job with a time for each number of GPUs, 250 W per GPU; the first number is the requested one.
fn job(name: &str, times: &[(u32, f64)]) -> Job {
    let (namespace, _) = name.split_once('/').unwrap();
    let row = |(gpus, time): &(u32, f64)| row("A100", *gpus, *time, 250.0);
    Job {
        requested_gpus: Some(GpuCount(times[0].0)),
        ..Job::new(
            name.into(),
            namespace.into(),
            Time(-HOUR),
            CostRate(1e-3),
            1.0,
            times.iter().map(row).collect(),
        )
    }
}

fn row(gpu_type: &str, gpus: u32, time: f64, watts: f64) -> Estimate {
    Estimate::new(gpu_type.into(), GpuCount(gpus), Seconds(time), Watts(watts * f64::from(gpus)))
}

fn running(job: Job, node: &str, gpus: u32) -> Job {
    let placement = Placement {
        gpu_type: "A100".into(),
        nodes: vec![node.into()],
        gpus_per_node: GpuCount(gpus),
        limit: None,
    };
    Job { state: JobState::Running { placement, since: Time(-HOUR) }, ..job }
}

/// Name, GPU-seconds and seconds of each job so far, at instant 0.
fn service(of: &[(&str, f64, f64)]) -> Memory {
    let remembered = |(name, gpu_seconds, ran): &(&str, f64, f64)| {
        let memory = JobMemory { service: Seconds(*gpu_seconds), ran: Seconds(*ran), ..JobMemory::default() };
        ((*name).into(), memory)
    };
    Memory { jobs: of.iter().map(remembered).collect(), ..Memory::default() }
}

/// A decision without memory.
fn decide(snapshot: &Snapshot, method: Method) -> Plan {
    decide_after(snapshot, method, &Memory::default()).0
}

/// A decision with the memory of the last one, and the memory after it.
fn decide_after(snapshot: &Snapshot, method: Method, memory: &Memory) -> (Plan, Memory) {
    let options = Options { method, ..Options::default() };
    let mut scheduler = Scheduler { memory: Some(memory.clone()), ..Scheduler::new(options) };
    (scheduler.plan(snapshot).unwrap(), scheduler.memory.unwrap())
}

/// GPUs of each job by name.
fn gpus(plan: &Plan) -> Vec<(&str, u32)> {
    let of = |job: &JobPlan| job.decision.placement().map_or(0, |p| p.total_gpus().0);
    plan.jobs.iter().map(|(id, job)| (id.as_str(), of(job))).collect()
}

#[test]
fn tiresias_serves_who_had_least_and_stops_nobody_in_its_own_queue() {
    let mut snapshot = cluster(1);
    snapshot.jobs =
        vec![running(job("a/old", &[(8, 9.0 * HOUR)]), "n0", 8), job("a/new", &[(8, 99.0 * HOUR)])];
    // Below the first threshold both are in the first queue,
    let (plan, _) = decide_after(&snapshot, Method::Tiresias, &service(&[("a/old", 3249.0, 406.0)]));
    assert_eq!(gpus(&plan), [("a/new", 0), ("a/old", 8)]);
    // above it the new one is first, whatever its length.
    let (plan, _) = decide_after(&snapshot, Method::Tiresias, &service(&[("a/old", 3251.0, 406.0)]));
    assert_eq!(gpus(&plan), [("a/new", 8), ("a/old", 0)]);
}

#[test]
fn tiresias_skips_who_does_not_fit_and_takes_the_starved_as_new() {
    let mut snapshot = cluster(1);
    snapshot.jobs = vec![
        running(job("a/kept", &[(4, HOUR)]), "n0", 4),
        job("a/large", &[(8, HOUR)]),
        job("a/served", &[(4, HOUR)]),
    ];
    snapshot.jobs[0].preemption = Preemption::Never;
    let mut memory = service(&[("a/served", 50_000.0, 100.0), ("a/other", 0.0, 0.0)]);
    let (plan, _) = decide_after(&snapshot, Method::Tiresias, &memory);
    assert_eq!(gpus(&plan), [("a/kept", 4), ("a/large", 0), ("a/served", 4)]);
    // A job that has waited eight times its run time returns to the first queue: its service is reset.
    for (since, service) in [(-800.0, 0.0), (-799.0, 50_000.0)] {
        memory.jobs.get_mut("a/served").unwrap().waits_since = Some(Time(since));
        let (_, after) = decide_after(&snapshot, Method::Tiresias, &memory);
        assert_eq!(after.jobs["a/served"].service, Seconds(service));
    }
}

#[test]
fn what_was_held_between_two_decisions_has_been_had() {
    let mut snapshot = cluster(1);
    snapshot.jobs = vec![job("a/one", &[(4, HOUR)]), job("b/two", &[(8, HOUR)])];
    let (_, memory) = decide_after(&snapshot, Method::Tiresias, &Memory::default());
    snapshot.jobs[0] = running(snapshot.jobs[0].clone(), "n0", 4);
    snapshot.now = Time(100.0);
    let (_, memory) = decide_after(&snapshot, Method::Tiresias, &memory);
    let one = &memory.jobs["a/one"];
    assert_eq!((one.service, one.ran, one.waits_since), (Seconds(400.0), Seconds(100.0), None));
    assert_eq!(memory.jobs["b/two"].waits_since, Some(Time(0.0)));
    assert_eq!(memory.namespaces["a"]["A100"], Seconds(400.0));
}

#[test]
fn srtf_stops_the_long_for_the_short() {
    let mut snapshot = cluster(1);
    snapshot.jobs = vec![
        running(job("a/long", &[(8, 2.0 * HOUR)]), "n0", 8),
        job("a/middle", &[(4, 1.5 * HOUR)]),
        job("a/short", &[(4, HOUR)]),
    ];
    let plan = decide(&snapshot, Method::Srtf);
    assert_eq!(gpus(&plan), [("a/long", 0), ("a/middle", 4), ("a/short", 4)]);
    assert_eq!(plan.jobs["a/short"].after, ["a/long".into()]);
}

#[test]
fn elasticflow_gives_the_smallest_share_in_time_and_the_rest_where_it_costs_least() {
    // Both need two GPUs to be in time; of the four GPUs left the well-scaling one gains more per GPU.
    let mut snapshot = cluster(1);
    let well = [(1, 4.0 * HOUR), (2, 2.0 * HOUR), (4, 1.05 * HOUR), (8, 0.55 * HOUR)];
    let badly = [(1, 4.0 * HOUR), (2, 2.0 * HOUR), (4, 1.8 * HOUR), (8, 1.7 * HOUR)];
    let due = Some(Time(2.5 * HOUR));
    snapshot.jobs =
        vec![Job { deadline: due, ..job("a/badly", &badly) }, Job { deadline: due, ..job("a/well", &well) }];
    let plan = decide(&snapshot, Method::Elasticflow);
    assert_eq!(gpus(&plan), [("a/badly", 4), ("a/well", 4)]);
    // With capacity for two levels but not three, the well-scaling one gets it.
    snapshot.nodes[0].free_gpus = GpuCount(6);
    let plan = decide(&snapshot, Method::Elasticflow);
    assert_eq!(gpus(&plan), [("a/badly", 2), ("a/well", 4)]);
}

#[test]
fn elasticflow_promises_what_it_can_keep_and_leaves_the_rest_to_others() {
    // Three jobs, each needing five of eight GPU hours until the same deadline.
    let mut snapshot = cluster(1);
    let due = Some(Time(HOUR));
    for (i, name) in ["a/first", "a/second", "a/third"].into_iter().enumerate() {
        let job = job(name, &[(4, 0.9 * HOUR), (8, 0.6 * HOUR)]);
        snapshot.jobs.push(Job { deadline: due, submit: Time(-3.0 + i as f64), ..job });
    }
    let (plan, memory) = decide_after(&snapshot, Method::Elasticflow, &Memory::default());
    assert_eq!(gpus(&plan), [("a/first", 4), ("a/second", 4), ("a/third", 0)]);
    let admitted = |name: &str| memory.jobs[name].admitted;
    assert_eq!(
        [admitted("a/first"), admitted("a/second"), admitted("a/third")],
        [Some(true), Some(true), Some(false)]
    );
    // A new job with an earlier deadline does not break an accepted one.
    let early = Job { deadline: Some(Time(0.7 * HOUR)), ..job("a/early", &[(8, 0.6 * HOUR)]) };
    snapshot.jobs.push(early);
    let (plan, memory) = decide_after(&snapshot, Method::Elasticflow, &memory);
    assert_eq!(memory.jobs["a/early"].admitted, Some(false));
    assert_eq!(gpus(&plan)[..3], [("a/early", 0), ("a/first", 4), ("a/second", 4)]);
}

#[test]
fn elasticflow_lets_a_job_wait_that_has_time_only_while_others_need_its_gpus() {
    // The urgent one needs all GPUs at first; the other is in time if it starts after that.
    let mut snapshot = cluster(1);
    let urgent = Job { deadline: Some(Time(HOUR)), ..job("a/urgent", &[(8, 0.99 * HOUR)]) };
    let patient = Job { deadline: Some(Time(4.0 * HOUR)), ..job("a/patient", &[(4, 2.0 * HOUR)]) };
    snapshot.jobs = vec![patient, urgent];
    let (plan, memory) = decide_after(&snapshot, Method::Elasticflow, &Memory::default());
    assert_eq!(gpus(&plan), [("a/patient", 0), ("a/urgent", 8)]);
    assert_eq!(memory.jobs["a/patient"].admitted, Some(true));
}

#[test]
fn gavel_gives_each_type_to_who_does_most_with_a_joule_there_and_keeps_its_rounds() {
    // A T4 draws a seventh; one model runs at half the speed there, the other at a tenth.
    let mut snapshot = cluster(1);
    snapshot.gpu_types.push(kind("T4"));
    snapshot.nodes.push(node("t0", "T4"));
    let two = |name: &str, slower: f64| Job {
        estimates: [row("A100", 8, HOUR, 350.0), row("T4", 8, slower * HOUR, 50.0)].into(),
        ..job(name, &[(8, HOUR)])
    };
    snapshot.jobs = vec![two("a/light", 2.0), two("a/heavy", 10.0)];
    let (plan, memory) = decide_after(&snapshot, Method::Gavel, &Memory::default());
    let place = |plan: &Plan, job: &str| plan.jobs[job].decision.placement().unwrap().gpu_type.to_string();
    assert_eq!((place(&plan, "a/light"), place(&plan, "a/heavy")), ("T4".into(), "A100".into()));
    // A deadline that only the A100 meets reverses this, at a higher cost,
    snapshot.jobs[0].deadline = Some(Time(1.05 * HOUR));
    let turned = decide(&snapshot, Method::Gavel);
    assert_eq!(place(&turned, "a/light"), "A100");
    // but not before the round has ended.
    for (job, node) in [(0, "t0"), (1, "n0")] {
        let job = &mut snapshot.jobs[job];
        let placement = plan.jobs[&job.id].decision.placement().unwrap().clone();
        assert_eq!(placement.nodes[0].as_str(), node);
        job.state = JobState::Running { placement, since: snapshot.now };
    }
    snapshot.now = Time(359.0);
    assert_eq!(place(&decide_after(&snapshot, Method::Gavel, &memory).0, "a/light"), "T4");
    snapshot.now = Time(361.0);
    snapshot.jobs[0].deadline = Some(Time(361.0 + 1.05 * HOUR));
    assert_eq!(place(&decide_after(&snapshot, Method::Gavel, &memory).0, "a/light"), "A100");
}

#[test]
fn gandiva_fair_shares_by_tickets_not_by_jobs() {
    let mut snapshot = cluster(1);
    for i in 0..8 {
        snapshot.jobs.push(job(&format!("many/{i}"), &[(1, HOUR)]));
    }
    for i in 0..6 {
        snapshot.jobs.push(job(&format!("few/{i}"), &[(1, HOUR)]));
    }
    let of = |plan: &Plan, namespace: &str| -> u32 {
        gpus(plan).iter().filter(|(id, _)| id.starts_with(namespace)).map(|(_, g)| g).sum()
    };
    let plan = decide(&snapshot, Method::GandivaFair);
    assert_eq!((of(&plan, "many"), of(&plan, "few")), (4, 4));
    let tickets = Tickets([("few".into(), 3.0), ("many".into(), 1.0)].into());
    let options = Options { method: Method::GandivaFair, ..Options::default() };
    let plan = Scheduler { tickets, ..Scheduler::new(options) }.plan(&snapshot).unwrap();
    assert_eq!((of(&plan, "many"), of(&plan, "few")), (2, 6));
    // A namespace above its share waits until the shares are even.
    let had = |name: &str, gpu_s: f64| (name.into(), [("A100".into(), Seconds(gpu_s))].into());
    let namespaces = [had("few", 0.0), had("many", 1e6)].into();
    let memory = Memory { namespaces, ..Memory::default() };
    let (plan, _) = decide_after(&snapshot, Method::GandivaFair, &memory);
    assert_eq!((of(&plan, "many"), of(&plan, "few")), (2, 6));
}

#[test]
fn powerflow_takes_the_step_with_the_largest_gain_for_its_energy() {
    // Both may double. The well-scaling one needs no more energy for it, and the watts allow only one.
    let mut snapshot = cluster(1);
    snapshot.jobs = vec![
        job("a/badly", &[(1, 4.0 * HOUR), (2, 3.0 * HOUR)]),
        job("a/well", &[(1, 4.0 * HOUR), (2, 2.1 * HOUR)]),
    ];
    // 8 x 50 W idle; each GPU in use adds 200 W.
    for (watts, wanted) in
        [(1200.0, [2, 2]), (1199.0, [1, 2]), (1000.0, [1, 2]), (999.0, [1, 1]), (600.0, [1, 0])]
    {
        snapshot.budget =
            Some(PowerBudget { watts: StepFunction::flat(Watts(watts)), margin: 0.0, scope_factor: 1.0 });
        let plan = decide(&snapshot, Method::Powerflow);
        let [badly, well] = wanted;
        assert_eq!(gpus(&plan), [("a/badly", badly), ("a/well", well)], "{watts} W");
    }
}

#[test]
fn powerflow_starts_at_the_thriftiest_limit_and_raises_it_while_there_are_watts() {
    let mut snapshot = cluster(1);
    let limits = vec![LimitEffect {
        gpu_type: "A100".into(),
        limit: Watts(150.0),
        time_factor: 1.2,
        power_factor: 0.6,
    }];
    snapshot.jobs = vec![Job { limits, ..job("a/one", &[(8, HOUR)]) }];
    for (watts, limit) in [(None, None), (Some(2000.0), None), (Some(1999.0), Some(Watts(150.0)))] {
        snapshot.budget = watts.map(|watts| PowerBudget {
            watts: StepFunction::flat(Watts(watts)),
            margin: 0.0,
            scope_factor: 1.0,
        });
        let plan = decide(&snapshot, Method::Powerflow);
        assert_eq!(plan.jobs["a/one"].decision.placement().unwrap().limit, limit, "{watts:?}");
    }
}

/// Gavel's own measurements (stanford-futuredata/gavel at c4fa4009, `simulation_throughputs.json`, MIT: steps
/// per second alone on one GPU) and the rents of its paper per GPU hour. Rent replaces watts, since cost is
/// energy here.
#[test]
fn gavel_sends_models_where_its_own_tables_say_that_money_does_most() {
    let rents = [("k80", 0.45), ("p100", 1.46), ("v100", 2.48)];
    let models = [
        ("a/a3c", [3.4387678, 5.6813461, 7.1757672]),
        ("a/resnet50", [0.3472237, 1.5843516, 2.4967656]),
        ("a/transformer", [1.7522266, 5.0918309, 8.6177590]),
    ];
    let mut snapshot = cluster(0);
    let info = |name: &str| GpuTypeInfo { name: name.into(), idle: Watts(0.0), max: Watts(3000.0) };
    snapshot.gpu_types = rents.iter().map(|(name, _)| info(name)).collect();
    let one = GpuCount(1);
    let small = |name: &str| Node { gpus: one, free_gpus: one, ..node(name, name) };
    snapshot.nodes = rents.iter().map(|(name, _)| small(name)).collect();
    for (name, speeds) in &models {
        let rows =
            rents.iter().zip(speeds).map(|((kind, rent), speed)| row(kind, 1, 1e5 / speed, 1000.0 * rent));
        snapshot.jobs.push(Job { estimates: rows.collect(), ..job(name, &[(1, HOUR)]) });
    }
    let plan = decide(&snapshot, Method::Gavel);
    let place = |job: &str| plan.jobs[job].decision.placement().unwrap().gpu_type.to_string();
    assert_eq!([place("a/a3c"), place("a/resnet50"), place("a/transformer")], ["k80", "p100", "v100"]);
    // The best of the six ways to give one GPU to each, by progress per money relative to each model's best.
    let thrift = |m: usize, k: usize| models[m].1[k] / rents[k].1;
    let part = |m: usize, k: usize| thrift(m, k) / (0..3).map(|k| thrift(m, k)).fold(0.0, f64::max);
    let worth = |way: [usize; 3]| (0..3).map(|m| part(m, way[m])).sum::<f64>();
    let others = [[0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];
    assert!(others.iter().all(|way| worth(*way) < worth([0, 1, 2]) - 0.03));
}

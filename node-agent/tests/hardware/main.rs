//! The agent's reading of a real GPU beside nvidia-smi's. It sets nothing.
//!
//! Where there is no GPU it says so and compares nothing. With `UPDATE=1` (`make long WHAT=hardware`) it writes `docs/hardware.md`. With `LOAD=1`
//! the first GPU is loaded, by `hardware/load` or another program that `LOAD` names (`PROGRAM parked|busy`); without it, and where
//! somebody uses the GPU, it is read as it is. With `FAULT=1` a program on it makes an error, of those that leave a GPU healthy.
//! What is not asked for stays on the page as it was read before.

#![allow(dead_code, reason = "this program uses a part of the helpers")]

mod page;
#[path = "../support/mod.rs"]
mod support;

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use andreas_node_agent::gpu::nvml::NvmlLibrary;
use andreas_node_agent::gpu::{Facts, Gpu, Library, Sample};
use page::{Cadence, FAULTY, Fault, Phase, Row, UNDER_LOAD, UnderLoad};
use support::{SLACK, TestNode, until};

/// How long a GPU is read as it is, and again after a load.
const AS_IT_IS: Duration = Duration::from_secs(20);
/// How long it is read while a load runs.
const LOADED: Duration = Duration::from_secs(60);
/// Time for which clocks and the mean of the draw, of one second, settle.
const SETTLING: Duration = Duration::from_secs(6);
/// Interval of power readings meanwhile.
const READING: Duration = Duration::from_millis(100);
/// Most by which energy by the counter and by power x time may differ.
const ENERGY_ERROR: f64 = 0.02;
/// How long readings are repeated without a pause, for the time between two that differ.
const WITHOUT_PAUSE: Duration = Duration::from_secs(3);

/// What was read of a GPU at once.
struct Reading {
    uuid: String,
    facts: Facts,
    sample: Sample,
}

/// Answer of nvidia-smi; `None` where there is none.
fn nvidia_smi(flags: &[&str]) -> Option<String> {
    let output = Command::new("nvidia-smi").args(flags).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

/// What is asked of nvidia-smi, in this order.
const QUERY: &str = "uuid,name,power.draw,enforced.power.limit,power.min_limit,power.max_limit,clocks.sm";

/// Compares our readings with lines of nvidia-smi: CSV of [`QUERY`] without units, and `uuid, pid` of processes.
fn compare(gpus: &[Reading], lines: &str, processes: &str) -> Vec<Row> {
    let mut rows = Vec::new();
    for gpu in gpus {
        let line = lines.lines().find(|line| line.starts_with(&gpu.uuid)).unwrap_or_default();
        let fields: Vec<&str> = line.split(',').map(str::trim).collect();
        let field = |place: usize| fields.get(place).copied().unwrap_or("missing");
        let mut row = |what, own: String, other: &str, agrees| {
            rows.push(Row { uuid: gpu.uuid.clone(), what, own, other: other.to_owned(), agrees });
        };
        let near = |own: f64, other: &str, part: f64, least: f64| {
            other.parse::<f64>().is_ok_and(|other| (own - other).abs() <= (other * part).max(least))
        };
        let watts = |milliwatts: u32| f64::from(milliwatts) / 1000.0;
        let sample = &gpu.sample;
        row("product", gpu.facts.product.clone(), field(1), gpu.facts.product == field(1));
        // Two readings at two times.
        let draw = watts(sample.power_mw.unwrap_or_default());
        row("draw, W", format!("{draw:.1}"), field(2), near(draw, field(2), 0.15, 5.0));
        let limit = watts(sample.limit_mw.unwrap_or_default());
        row("power limit, W", format!("{limit:.0}"), field(3), near(limit, field(3), 0.0, 1.0));
        let range = gpu.facts.limit_mw.map(|(lowest, highest)| (watts(lowest), watts(highest)));
        let (lowest, highest) = range.unwrap_or_default();
        row("lowest limit, W", format!("{lowest:.0}"), field(4), near(lowest, field(4), 0.0, 1.0));
        row("highest limit, W", format!("{highest:.0}"), field(5), near(highest, field(5), 0.0, 1.0));
        let clock = f64::from(sample.clock_mhz.unwrap_or_default());
        row("SM clock, MHz", format!("{clock:.0}"), field(6), near(clock, field(6), 0.2, 100.0));
        let theirs = processes.lines().filter(|line| line.starts_with(&gpu.uuid)).count();
        let own = sample.contexts().unwrap_or_default() as usize;
        row("processes", own.to_string(), &theirs.to_string(), own == theirs);
    }
    rows
}

/// Compares the readings of GPUs with nvidia-smi's of the same moment.
fn beside_nvidia_smi(gpus: &[Reading]) -> Vec<Row> {
    let query = format!("--query-gpu={QUERY}");
    let lines = nvidia_smi(&[&query, "--format=csv,noheader,nounits"]).expect("nvidia-smi");
    let processes =
        nvidia_smi(&["--query-compute-apps=gpu_uuid,pid", "--format=csv,noheader"]).unwrap_or_default();
    compare(gpus, &lines, &processes)
}

fn read(library: &NvmlLibrary, uuid: &str) -> Reading {
    let mut gpu = library.open(uuid).expect("the GPU is there");
    Reading {
        uuid: uuid.to_owned(),
        facts: gpu.facts().expect("facts"),
        sample: gpu.sample().expect("a sample"),
    }
}

fn phase(gpu: &mut dyn Gpu, name: &'static str, length: Duration) -> Phase {
    let first = gpu.sample().expect("a sample");
    let since = Instant::now();
    let mut phase =
        Phase { name, seconds: 0.0, counter: None, power: 0.0, last: first.clone(), reported: String::new() };
    let mut draw_mw = first.power_mw;
    while since.elapsed() < length {
        std::thread::sleep(READING);
        phase.last = gpu.sample().expect("a sample");
        let seconds = since.elapsed().as_secs_f64();
        // Where one reading lacks the draw, the one before holds: missing is not 0 W.
        draw_mw = phase.last.power_mw.or(draw_mw);
        let draw = f64::from(draw_mw.expect("a draw that was read")) / 1000.0;
        phase.power += draw * (seconds - phase.seconds);
        phase.seconds = seconds;
    }
    let ends = first.energy_mj.zip(phase.last.energy_mj);
    phase.counter = ends.map(|(before, after)| (after - before) as f64 / 1000.0);
    phase
}

fn cadence(gpu: &mut dyn Gpu) -> Cadence {
    let since = Instant::now();
    let (mut last, mut readings, mut power, mut energy) = (gpu.sample().expect("a sample"), 0, 0, 0);
    while since.elapsed() < WITHOUT_PAUSE {
        let next = gpu.sample().expect("a sample");
        readings += 1;
        power += u32::from(next.power_mw != last.power_mw);
        energy += u32::from(next.energy_mj != last.energy_mj);
        last = next;
    }
    let each = |count: u32| since.elapsed() / count.max(1);
    Cadence { power: each(power), energy: each(energy), reading: each(readings) }
}

const OWN_LOAD: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/hardware/load");

/// What a variable asks for.
fn asked(variable: &str) -> Option<String> {
    std::env::var(variable).ok().filter(|value| !value.is_empty())
}

/// The program that `LOAD` asks for.
fn load() -> Option<String> {
    asked("LOAD").map(|said| if said == "1" { OWN_LOAD.to_owned() } else { said })
}

/// A program that loads a GPU until it is dropped.
struct Load(Child);

impl Load {
    fn start(program: &str, kind: &str, uuid: &str) -> Self {
        let mut command = Command::new(program);
        command.arg(kind).env("CUDA_VISIBLE_DEVICES", uuid).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("the load starts");
        let mut line = String::new();
        let mut output = BufReader::new(child.stdout.take().expect("its output is piped"));
        output.read_line(&mut line).expect("its output can be read");
        assert_eq!(line.trim(), "ready", "the load {kind}");
        Self(child)
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

/// The agent's own process, which observes, with a kubelet and an API server of a few objects.
struct Agent {
    runtime: tokio::runtime::Runtime,
    node: TestNode,
    _process: support::Process,
}

impl Agent {
    fn start(uuid: &str) -> Self {
        let runtime = tokio::runtime::Runtime::new().expect("threads");
        let mut node = runtime.block_on(TestNode::new(&[]));
        node.library = "libnvidia-ml.so.1".into();
        let process = node.agent_with(&["--observe", "--interval", "1000"]);
        let agent = Self { runtime, node, _process: process };
        agent.until("the agent reports the GPU", || agent.node.api.gpu(uuid).0 == "Free");
        agent
    }

    fn until(&self, what: &str, done: impl FnMut() -> bool) {
        self.runtime.block_on(until(what, SLACK, done));
    }

    /// How many Xid errors of a GPU it counted.
    fn xids(&self, uuid: &str) -> u64 {
        let (_, metrics) = self.runtime.block_on(self.node.ask("/metrics"));
        let start = format!("andreas_gpu_xid_errors_total{{uuid=\"{uuid}\"");
        let line = metrics.lines().find(|line| line.starts_with(&start));
        line.and_then(|line| line.rsplit(' ').next()?.parse().ok()).unwrap_or(0)
    }

    fn reported(&self, uuid: &str) -> String {
        let (state, pod) = self.node.api.gpu(uuid);
        pod.map_or(state.clone(), |pod| format!("{state}: {pod}"))
    }
}

/// Starts the program that makes an error.
fn fault(library: &NvmlLibrary, uuid: &str) -> Fault {
    let agent = Agent::start(uuid);
    let mut events = library.error_events(&[uuid.to_owned()]).expect("the driver takes subscriptions");
    let before = agent.xids(uuid);
    let since = Instant::now();
    let mut command = Command::new(OWN_LOAD);
    let status = command.arg("faulty").env("CUDA_VISIBLE_DEVICES", uuid).status();
    assert!(!status.expect("the program starts").success(), "its error reaches it");
    let xid = events.wait(SLACK).expect("the driver answers").map(|event| event.xid);
    while agent.xids(uuid) == before && since.elapsed() < SLACK {
        std::thread::sleep(READING);
    }
    let counted_after = (agent.xids(uuid) > before).then(|| since.elapsed());
    // Its next report says what it makes of the error.
    std::thread::sleep(SETTLING);
    Fault { xid, counted_after, reported: agent.reported(uuid) }
}

/// Energy of a GPU by its counter, J.
fn counter(gpu: &mut dyn Gpu) -> f64 {
    gpu.sample().expect("a sample").energy_mj.unwrap_or(0) as f64 / 1000.0
}

/// The first GPU as it is, with a context that does nothing, with all cores busy for a pod, and after that.
fn under_load(library: &NvmlLibrary, uuid: &str, program: &str) -> UnderLoad {
    let mut gpu = library.open(uuid).expect("the GPU is there");
    let agent = Agent::start(uuid);
    let mut phases = Vec::new();
    let mut read_for = |gpu: &mut dyn Gpu, name, length| {
        let phase = phase(gpu, name, length);
        phases.push(Phase { reported: agent.reported(uuid), ..phase });
    };
    read_for(gpu.as_mut(), "no context", AS_IT_IS);

    let parked = Load::start(program, "parked", uuid);
    std::thread::sleep(SETTLING);
    read_for(gpu.as_mut(), "a context that does nothing", LOADED);
    drop(parked);

    agent.node.hold("job-1-0", &[uuid]);
    let before = counter(gpu.as_mut());
    agent.until("the pod holds the GPU", || agent.node.api.gpu(uuid).0 == "Held");
    let busy = Load::start(program, "busy", uuid);
    std::thread::sleep(SETTLING);
    let rows = beside_nvidia_smi(&[read(library, uuid)]);
    let cadence = cadence(gpu.as_mut());
    read_for(gpu.as_mut(), "busy", LOADED);
    drop(busy);
    agent.node.hold("job-1-0", &[]);
    let drawn = counter(gpu.as_mut()) - before;
    agent.until("the energy of the pod is reported", || agent.node.api.status()["released"].is_array());
    let of_pod = agent.node.api.status()["released"][0]["joules"].as_f64().unwrap_or(0.0);

    std::thread::sleep(SETTLING);
    read_for(gpu.as_mut(), "no context any more", AS_IT_IS);
    UnderLoad { phases, rows, cadence, of_pod: (of_pod, drawn) }
}

#[test]
fn what_the_agent_reads_is_what_nvidia_smi_says() {
    let library = NvmlLibrary::new("libnvidia-ml.so.1");
    let uuids = match (library.uuids(), nvidia_smi(&["-L"])) {
        (Err(error), None) => {
            println!(
                "no GPU here ({error}): nothing was compared, docs/hardware.md has what was read elsewhere"
            );
            return;
        }
        (uuids, _) => uuids.expect("the driver answers"),
    };
    let driver = nvidia_smi(&["--query-gpu=driver_version", "--format=csv,noheader"]).unwrap_or_default();
    let driver = driver.lines().next().unwrap_or("unknown");
    let gpus: Vec<Reading> = uuids.iter().map(|uuid| read(&library, uuid)).collect();
    let mut rows = beside_nvidia_smi(&gpus);
    let begin = format!("Driver {driver}.\n\n{}", page::table_of_rows(&rows));
    let (mut parts, mut wrong) = (Vec::new(), Vec::new());
    let of = |gpu: &Reading| format!("{}, driver {driver}.", gpu.facts.product);
    let idle = gpus.first().filter(|gpu| gpu.sample.contexts() == Some(0));
    if idle.is_none() && (asked("LOAD").is_some() || asked("FAULT").is_some()) {
        println!("the first GPU is in use: no load and no error is made on it");
    }
    if let (Some(program), Some(gpu)) = (load(), idle) {
        let loaded = under_load(&library, &gpu.uuid, &program);
        parts.push((UNDER_LOAD, page::part_of_load(&of(gpu), &loaded)));
        let (reported, counted) = loaded.of_pod;
        let energies =
            loaded.phases.iter().filter_map(|phase| Some((phase.name, phase.power, phase.counter?)));
        wrong = energies
            .chain([("of the pod", reported, counted)])
            .filter(|(_, joules, counted)| (joules - counted).abs() > ENERGY_ERROR * counted)
            .map(|(name, ..)| format!("counter and power: {name}"))
            .collect();
        rows.extend(loaded.rows);
    }
    if let (Some(_), Some(gpu)) = (asked("FAULT"), idle) {
        let fault = fault(&library, &gpu.uuid);
        let part = page::part_of_fault(&of(gpu), &fault);
        if fault.xid != Some(31) || fault.counted_after.is_none() || fault.reported != "Free" {
            wrong.push(part.clone());
        }
        parts.push((FAULTY, part));
    }
    let page = page::page(&page::committed(), &begin, &parts);
    println!("{page}");
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(page::PAGE, &page).expect("the page can be written");
    }
    let differ: Vec<&Row> = rows.iter().filter(|row| !row.agrees).collect();
    assert!(!rows.is_empty() && differ.is_empty(), "{differ:?}");
    assert!(wrong.is_empty(), "{wrong:?}");
}

#[test]
fn a_reading_that_differs_is_noticed() {
    let gpu = |power_mw| Reading {
        uuid: "GPU-1".into(),
        facts: Facts {
            product: "NVIDIA T4".into(),
            limit_mw: Some((60_000, 70_000)),
            clock_mhz: None,
            minor: Some(0),
            ..Facts::default()
        },
        sample: Sample {
            power_mw: Some(power_mw),
            limit_mw: Some(70_000),
            clock_mhz: Some(300),
            processes: Some(vec![7]),
            ..Sample::default()
        },
    };
    let lines = "GPU-1, NVIDIA T4, 10.2, 70.00, 60.00, 70.00, 300\n";
    let differ = |gpu: Reading, processes: &str| -> Vec<&'static str> {
        compare(&[gpu], lines, processes).into_iter().filter(|row| !row.agrees).map(|row| row.what).collect()
    };
    assert!(differ(gpu(10_000), "GPU-1, 7\n").is_empty());
    assert_eq!(differ(gpu(40_000), "GPU-1, 7\n"), ["draw, W"]);
    assert_eq!(differ(gpu(10_000), ""), ["processes"]);
    let other = compare(&[gpu(10_000)], "", "GPU-1, 7\n");
    assert_eq!(
        other.iter().filter(|row| row.agrees).count(),
        1,
        "only processes, of which there are as many"
    );
}

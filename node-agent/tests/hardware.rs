//! The agent's reading of a real GPU beside nvidia-smi's. It sets nothing.
//!
//! Where there is no GPU it says so and compares nothing. With `UPDATE=1` (`make hardware`) it writes `docs/hardware.md`. With `LOAD=1`
//! the first GPU is loaded, by `hardware/load` or another program that `LOAD` names (`PROGRAM parked|busy`); without it, and where
//! somebody uses the GPU, it is read as it is.

#![allow(dead_code, reason = "this program uses a part of the helpers")]

mod support;

use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use andreas_node_agent::gpu::nvml::NvmlLibrary;
use andreas_node_agent::gpu::{ClockEvents, Facts, Gpu, Library, Sample};
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

/// What was read of a GPU for a while.
struct Phase {
    name: &'static str,
    seconds: f64,
    /// Energy by the counter, J; `None` where the GPU has none.
    counter: Option<f64>,
    /// Energy by power x time, J.
    power: f64,
    /// The last reading.
    last: Sample,
    /// What the agent itself reports then: state and pod.
    reported: String,
}

/// What was read under load.
struct UnderLoad {
    phases: Vec<Phase>,
    /// Beside nvidia-smi, while busy.
    rows: Vec<Row>,
    cadence: Cadence,
    /// Energy of the pod that held the GPU while it was busy, J: reported by the agent, and by the counter.
    of_pod: (f64, f64),
}

/// Time between two readings that differ, and how long a reading takes.
struct Cadence {
    power: Duration,
    energy: Duration,
    reading: Duration,
}

/// A comparison of one figure.
#[derive(Debug, PartialEq)]
struct Row {
    uuid: String,
    what: &'static str,
    own: String,
    other: String,
    agrees: bool,
}

/// Answer of nvidia-smi; `None` where there is none.
fn nvidia_smi(flags: &[&str]) -> Option<String> {
    let output = Command::new("nvidia-smi").args(flags).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

/// What is asked of nvidia-smi, in this order.
const QUERY: &str =
    "uuid,name,power.draw,enforced.power.limit,power.min_limit,power.max_limit,clocks.sm,temperature.gpu";

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
        row("product", gpu.facts.product.clone(), field(1), gpu.facts.product == field(1));
        // Two readings at two times.
        let draw = watts(gpu.sample.power_mw);
        row("draw, W", format!("{draw:.1}"), field(2), near(draw, field(2), 0.15, 5.0));
        let limit = watts(gpu.sample.limit_mw);
        row("power limit, W", format!("{limit:.0}"), field(3), near(limit, field(3), 0.0, 1.0));
        let range = gpu.facts.limit_mw.map(|(lowest, highest)| (watts(lowest), watts(highest)));
        let (lowest, highest) = range.unwrap_or_default();
        row("lowest limit, W", format!("{lowest:.0}"), field(4), near(lowest, field(4), 0.0, 1.0));
        row("highest limit, W", format!("{highest:.0}"), field(5), near(highest, field(5), 0.0, 1.0));
        let clock = f64::from(gpu.sample.clock_mhz);
        row("SM clock, MHz", format!("{clock:.0}"), field(6), near(clock, field(6), 0.2, 100.0));
        let degrees = gpu.sample.temperature.map_or(-1.0, f64::from);
        row("temperature, C", format!("{degrees:.0}"), field(7), near(degrees, field(7), 0.0, 5.0));
        let theirs = processes.lines().filter(|line| line.starts_with(&gpu.uuid)).count();
        let own = gpu.sample.contexts().unwrap_or_default() as usize;
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
    while since.elapsed() < length {
        std::thread::sleep(READING);
        phase.last = gpu.sample().expect("a sample");
        let seconds = since.elapsed().as_secs_f64();
        phase.power += f64::from(phase.last.power_mw) / 1000.0 * (seconds - phase.seconds);
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

/// The program that `LOAD` asks for.
fn load() -> Option<String> {
    let own = || concat!(env!("CARGO_MANIFEST_DIR"), "/tests/hardware/load").to_owned();
    let said = std::env::var("LOAD").ok().filter(|program| !program.is_empty())?;
    Some(if said == "1" { own() } else { said })
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

    fn reported(&self, uuid: &str) -> String {
        let (state, pod) = self.node.api.gpu(uuid);
        pod.map_or(state.clone(), |pod| format!("{state}: {pod}"))
    }
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

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/hardware.md");

fn committed() -> String {
    std::fs::read_to_string(PAGE).expect("the page can be read")
}

/// Begin of the part of the page that is written by hand.
const ASSUMED: &str = "## What was assumed, and what hardware says\n";

fn table_of_rows(rows: &[Row]) -> String {
    let mut text = "| GPU | figure | agent | nvidia-smi | agrees |\n|---|---|---|---|---|\n".to_owned();
    for row in rows {
        let agrees = if row.agrees { "yes" } else { "no" };
        // The last part of a UUID is enough to tell GPUs of a node apart.
        let short = row.uuid.rsplit('-').next().unwrap_or_default();
        let _ = writeln!(text, "| ...{short} | {} | {} | {} | {agrees} |", row.what, row.own, row.other);
    }
    text
}

fn table_of_phases(phases: &[Phase]) -> String {
    let columns = [
        "while",
        "s",
        "W by the energy counter",
        "W by power readings",
        "difference",
        "SM clock, MHz",
        "C",
        "processes",
        "slowed by",
        "reported",
    ];
    let mut text = format!("| {} |\n|{}\n", columns.join(" | "), "---|".repeat(columns.len()));
    for Phase { name, seconds, counter, power, last, reported } in phases {
        let by_counter = counter.map_or("none".into(), |joules| format!("{:.1}", joules / seconds));
        let difference = counter
            .map_or("none".into(), |joules| format!("{:+.2} %", 100.0 * (power - joules) / joules.max(1.0)));
        let ClockEvents { thermal, power_brake, hardware } = last.clock_events;
        let slowed = [(thermal, "heat"), (power_brake, "power brake"), (hardware, "hardware")];
        let slowed: Vec<&str> = slowed.iter().filter(|(is, _)| *is).map(|(_, name)| *name).collect();
        let slowed = if slowed.is_empty() { "nothing".to_owned() } else { slowed.join(", ") };
        let degrees = last.temperature.map_or("none".into(), |degrees| degrees.to_string());
        let processes = last.contexts().map_or("unknown".into(), |number| number.to_string());
        let watts = power / seconds;
        let clock = last.clock_mhz;
        let _ = writeln!(
            text,
            "| {name} | {seconds:.0} | {by_counter} | {watts:.1} | {difference} | {clock} | {degrees} | {processes} | \
             {slowed} | {reported} |"
        );
    }
    text
}

/// The page with these readings; what was assumed before stays.
fn page(before: &str, of: &str, readings: &str) -> String {
    let assumed = before.find(ASSUMED).and_then(|from| before.get(from..)).unwrap_or_default();
    format!(
        "# Hardware\n\nReadings of the node agent on real GPUs, beside those of `nvidia-smi`. Written by \
         `make hardware`, which only reads.\n\n{of}\n\n{readings}\n{assumed}"
    )
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
    let gpus: Vec<Reading> = uuids.iter().map(|uuid| read(&library, uuid)).collect();
    let mut rows = beside_nvidia_smi(&gpus);
    let mut readings = table_of_rows(&rows);
    let mut wrong_energy = Vec::new();
    let idle = gpus.first().filter(|gpu| gpu.sample.contexts() == Some(0));
    if let (Some(program), Some(gpu)) = (load(), idle) {
        let loaded = under_load(&library, &gpu.uuid, &program);
        let (reported, counted) = loaded.of_pod;
        let Cadence { power, energy, reading } = loaded.cadence;
        let _ = write!(
            readings,
            "\n## Under load\n\n{}\nEnergy of the pod that held it while it was busy: {reported:.0} J reported by the agent, \
             {counted:.0} J by the counter ({:+.2} %).\n\nWhile it is busy, beside `nvidia-smi`:\n\n{}\nPower readings \
             change every {} ms, the energy counter every {} ms; a reading of the agent takes {} \u{b5}s.\n",
            table_of_phases(&loaded.phases),
            100.0 * (reported - counted) / counted.max(1.0),
            table_of_rows(&loaded.rows),
            power.as_millis(),
            energy.as_millis(),
            reading.as_micros()
        );
        let energies =
            loaded.phases.iter().filter_map(|phase| Some((phase.name, phase.power, phase.counter?)));
        wrong_energy = energies
            .chain([("of the pod", reported, counted)])
            .filter(|(_, joules, counted)| (joules - counted).abs() > ENERGY_ERROR * counted)
            .map(|(name, ..)| name)
            .collect();
        rows.extend(loaded.rows);
    }
    let driver = nvidia_smi(&["--query-gpu=driver_version", "--format=csv,noheader"]).unwrap_or_default();
    let of = format!("Driver {}.", driver.lines().next().unwrap_or("unknown"));
    let page = page(&committed(), &of, &readings);
    println!("{page}");
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(PAGE, &page).expect("the page can be written");
    }
    let differ: Vec<&Row> = rows.iter().filter(|row| !row.agrees).collect();
    assert!(!rows.is_empty() && differ.is_empty(), "{differ:?}");
    assert!(wrong_energy.is_empty(), "counter and power differ: {wrong_energy:?}");
}

#[test]
fn a_page_with_readings_keeps_the_list_of_what_was_assumed() {
    let before = committed();
    let written = page(&before, "Driver 590.48.", "| table |\n");
    let (_, list) = before.split_once(ASSUMED).expect("the list has its heading");
    assert!(list.lines().filter(|line| line.starts_with("| ")).count() > 5, "{list}");
    assert!(written.contains("Driver 590.48") && written.ends_with(list), "{written}");
    assert_eq!(page(&written, "Driver 590.48.", "| table |\n"), written);
}

#[test]
fn a_reading_that_differs_is_noticed() {
    let gpu = |power_mw| Reading {
        uuid: "GPU-1".into(),
        facts: Facts {
            product: "NVIDIA T4".into(),
            limit_mw: Some((60_000, 70_000)),
            default_limit_mw: Some(70_000),
            clock_mhz: None,
            minor: Some(0),
            persistent: true,
        },
        sample: Sample {
            power_mw,
            limit_mw: 70_000,
            clock_mhz: 300,
            temperature: Some(40),
            processes: Some(vec![7]),
            ..Sample::default()
        },
    };
    let lines = "GPU-1, NVIDIA T4, 10.2, 70.00, 60.00, 70.00, 300, 41\n";
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

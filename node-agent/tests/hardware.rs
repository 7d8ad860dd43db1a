//! The agent's reading of a real GPU beside nvidia-smi's. It sets nothing.
//!
//! Where there is no GPU it says so and compares nothing. With `UPDATE=1` (`make hardware`) it writes `docs/hardware.md`.

use std::fmt::Write as _;
use std::process::Command;
use std::time::{Duration, Instant};

use andreas_node_agent::gpu::nvml::NvmlLibrary;
use andreas_node_agent::gpu::{Facts, Library, Sample};

/// How long energy is compared with power x time.
const ENERGY: Duration = Duration::from_secs(20);
/// Interval of power readings meanwhile.
const READING: Duration = Duration::from_millis(100);

/// What was read of a GPU.
struct Gpu {
    uuid: String,
    facts: Facts,
    sample: Sample,
    /// Energy by the counter and by power x time, J.
    energy: Option<(f64, f64)>,
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
fn compare(gpus: &[Gpu], lines: &str, processes: &str) -> Vec<Row> {
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
        if let Some((counter, power)) = gpu.energy {
            let agrees = (counter - power).abs() <= 0.1 * power;
            row("energy, J (counter; power x time)", format!("{counter:.0}"), &format!("{power:.0}"), agrees);
        }
    }
    rows
}

fn read(library: &NvmlLibrary) -> Vec<Gpu> {
    let uuids = library.uuids().expect("the driver answers");
    let read = |uuid: String| {
        let mut gpu = library.open(&uuid).expect("the GPU is there");
        let (facts, sample) = (gpu.facts().expect("facts"), gpu.sample().expect("a sample"));
        let energy = sample.energy_mj.map(|before| {
            let since = Instant::now();
            let (mut joules, mut last, mut after) = (0.0, since, before);
            while since.elapsed() < ENERGY {
                std::thread::sleep(READING);
                let next = gpu.sample().expect("a sample");
                joules += f64::from(next.power_mw) / 1000.0 * last.elapsed().as_secs_f64();
                (last, after) = (Instant::now(), next.energy_mj.unwrap_or(before));
            }
            ((after - before) as f64 / 1000.0, joules)
        });
        Gpu { uuid, facts, sample, energy }
    };
    uuids.into_iter().map(read).collect()
}

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/hardware.md");

fn committed() -> String {
    std::fs::read_to_string(PAGE).expect("the page can be read")
}

/// Begin of the part of the page that is written by hand.
const ASSUMED: &str = "## What hardware may contradict\n";

/// The page with these readings; what was assumed before stays.
fn page(before: &str, driver: &str, rows: &[Row]) -> String {
    let mut text =
        "# Hardware\n\nReadings of the node agent on real GPUs, beside those of `nvidia-smi`. Written by \
                    `make hardware`, which only reads.\n\n"
            .to_owned();
    let _ = writeln!(
        text,
        "Driver {driver}.\n\n| GPU | figure | agent | nvidia-smi | agrees |\n|---|---|---|---|---|"
    );
    for row in rows {
        let agrees = if row.agrees { "yes" } else { "no" };
        // The last part of a UUID is enough to tell GPUs of a node apart.
        let short = row.uuid.rsplit('-').next().unwrap_or_default();
        let _ = writeln!(text, "| ...{short} | {} | {} | {} | {agrees} |", row.what, row.own, row.other);
    }
    let assumed = before.find(ASSUMED).and_then(|from| before.get(from..)).unwrap_or_default();
    format!("{text}\n{assumed}")
}

#[test]
fn what_the_agent_reads_is_what_nvidia_smi_says() {
    let query = format!("--query-gpu={QUERY}");
    let library = NvmlLibrary::new("libnvidia-ml.so.1");
    if let (Err(error), None) = (library.uuids(), nvidia_smi(&["-L"])) {
        println!("no GPU here ({error}): nothing was compared, docs/hardware.md says what is not verified");
        return;
    }
    let gpus = read(&library);
    let lines = nvidia_smi(&[&query, "--format=csv,noheader,nounits"]).expect("nvidia-smi");
    let processes =
        nvidia_smi(&["--query-compute-apps=gpu_uuid,pid", "--format=csv,noheader"]).unwrap_or_default();
    let driver = nvidia_smi(&["--query-gpu=driver_version", "--format=csv,noheader"]).unwrap_or_default();
    let rows = compare(&gpus, &lines, &processes);
    let page = page(&committed(), driver.lines().next().unwrap_or("unknown"), &rows);
    println!("{page}");
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(PAGE, &page).expect("the page can be written");
    }
    let differ: Vec<&Row> = rows.iter().filter(|row| !row.agrees).collect();
    assert!(!rows.is_empty() && differ.is_empty(), "{differ:?}");
}

#[test]
fn a_page_with_readings_keeps_the_list_of_what_was_assumed() {
    let before = committed();
    let written = page(&before, "590.48", &[]);
    let (_, list) = before.split_once(ASSUMED).expect("the list has its heading");
    assert!(list.lines().filter(|line| line.starts_with("| ")).count() > 5, "{list}");
    assert!(written.contains("Driver 590.48") && written.ends_with(list), "{written}");
    assert_eq!(page(&written, "590.48", &[]), written);
}

#[test]
fn a_reading_that_differs_is_noticed() {
    let gpu = |power_mw| Gpu {
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
        energy: Some((210.0, 200.0)),
    };
    let lines = "GPU-1, NVIDIA T4, 10.2, 70.00, 60.00, 70.00, 300, 41\n";
    let differ = |gpu: Gpu, processes: &str| -> Vec<&'static str> {
        compare(&[gpu], lines, processes).into_iter().filter(|row| !row.agrees).map(|row| row.what).collect()
    };
    assert!(differ(gpu(10_000), "GPU-1, 7\n").is_empty());
    assert_eq!(differ(gpu(40_000), "GPU-1, 7\n"), ["draw, W"]);
    assert_eq!(differ(gpu(10_000), ""), ["processes"]);
    let other = compare(&[gpu(10_000)], "", "GPU-1, 7\n");
    assert_eq!(other.iter().filter(|row| row.agrees).count(), 2, "only what nvidia-smi is not asked for");
}

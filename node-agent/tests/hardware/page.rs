//! The page that shows what was read, and what is read for it.

use std::fmt::Write as _;
use std::time::Duration;

use andreas_node_agent::gpu::{ClockEvents, Sample};

/// What was read of a GPU for a while.
pub struct Phase {
    pub name: &'static str,
    pub seconds: f64,
    /// Energy by the counter, J; `None` where the GPU has none.
    pub counter: Option<f64>,
    /// Energy by power x time, J.
    pub power: f64,
    /// The last reading.
    pub last: Sample,
    /// What the agent itself reports then: state and pod.
    pub reported: String,
}

/// What was read under load.
pub struct UnderLoad {
    pub phases: Vec<Phase>,
    /// Beside nvidia-smi, while busy.
    pub rows: Vec<Row>,
    pub cadence: Cadence,
    /// Energy of the pod that held the GPU while it was busy, J: reported by the agent, and by the counter.
    pub of_pod: (f64, f64),
}

/// Time between two readings that differ, and how long a reading takes.
pub struct Cadence {
    pub power: Duration,
    pub energy: Duration,
    pub reading: Duration,
}

/// What an error that a program makes looks like.
pub struct Fault {
    /// What the driver's event says.
    pub xid: Option<u64>,
    /// Until the agent counted it.
    pub counted_after: Option<Duration>,
    /// What the agent reports of the GPU then.
    pub reported: String,
}

/// A comparison of one figure.
#[derive(Debug, PartialEq)]
pub struct Row {
    pub uuid: String,
    pub what: &'static str,
    pub own: String,
    pub other: String,
    pub agrees: bool,
}

pub const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/hardware.md");

pub fn committed() -> String {
    std::fs::read_to_string(PAGE).expect("the page can be read")
}

/// Begin of the part of the page that is written by hand.
const ASSUMED: &str = "## What was assumed, and what hardware says\n";

pub fn table_of_rows(rows: &[Row]) -> String {
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
        let processes = last.contexts().map_or("unknown".into(), |number| number.to_string());
        let watts = power / seconds;
        let clock = last.clock_mhz.unwrap_or_default();
        let _ = writeln!(
            text,
            "| {name} | {seconds:.0} | {by_counter} | {watts:.1} | {difference} | {clock} | {processes} | \
             {slowed} | {reported} |"
        );
    }
    text
}

/// Headings of the parts that a run may read or leave as they are.
pub const UNDER_LOAD: &str = "## Under load\n";
pub const FAULTY: &str = "## A program's error\n";

/// The page with these readings, of its begin and of some parts; what else it says stays.
pub fn page(before: &str, begin: &str, parts: &[(&str, String)]) -> String {
    let rest = before.find(ASSUMED).and_then(|from| before.get(from..)).unwrap_or_default();
    let mut page = format!(
        "# Hardware\n\nReadings of the node agent on real GPUs, beside those of `nvidia-smi`. Written by \
         `make long WHAT=hardware`, which sets nothing.\n\n{begin}\n"
    );
    for heading in [UNDER_LOAD, FAULTY] {
        let kept = || {
            let (_, text) = before.split_once(heading)?;
            Some(text.split_once("\n## ").map_or(text, |(text, _)| text).to_owned())
        };
        let read = parts.iter().find(|(part, _)| *part == heading).map(|(_, text)| format!("\n{text}"));
        if let Some(text) = read.or_else(kept) {
            page += &format!("{heading}{}\n\n", text.trim_end_matches('\n'));
        }
    }
    page + rest
}

/// The part about a load.
pub fn part_of_load(of: &str, loaded: &UnderLoad) -> String {
    let (reported, counted) = loaded.of_pod;
    let Cadence { power, energy, reading } = loaded.cadence;
    format!(
        "{of}\n\n{}\nEnergy of the pod that held it while it was busy: {reported:.0} J reported by the agent, {counted:.0} J by \
         the counter ({:+.2} %).\n\nWhile it is busy, beside `nvidia-smi`:\n\n{}\nPower readings change every {} ms, the \
         energy counter every {} ms; a reading of the agent takes {} \u{b5}s.\n",
        table_of_phases(&loaded.phases),
        100.0 * (reported - counted) / counted.max(1.0),
        table_of_rows(&loaded.rows),
        power.as_millis(),
        energy.as_millis(),
        reading.as_micros()
    )
}

/// The part about an error.
pub fn part_of_fault(of: &str, Fault { xid, counted_after, reported }: &Fault) -> String {
    let xid = xid.map_or("none".into(), |xid| xid.to_string());
    let counted = counted_after.map_or("never".into(), |after| format!("after {:.1} s", after.as_secs_f64()));
    format!(
        "{of}\n\nA program wrote to an address that is not its own. Xid of the driver's event: {xid}. Counted by the agent: \
         {counted}. Reported of the GPU afterwards: {reported}.\n"
    )
}

#[test]
fn a_page_with_readings_keeps_what_was_not_read_again() {
    let before = committed();
    let begin = "Driver 590.48.\n\n| table |\n";
    let written = page(&before, begin, &[(FAULTY, "An error.\n".into())]);
    let (_, list) = before.split_once(ASSUMED).expect("the list has its heading");
    assert!(list.lines().filter(|line| line.starts_with("| ")).count() > 5, "{list}");
    assert!(written.contains(begin) && written.ends_with(list), "{written}");
    let load = |page: &str| page.split_once(UNDER_LOAD).unwrap().1.split_once("\n## ").unwrap().0.to_owned();
    assert!(
        load(&before).contains("a context that does nothing") && load(&before) == load(&written),
        "{written}"
    );
    assert!(written.contains("## A program's error\n\nAn error.\n\n## What was assumed"), "{written}");
    assert_eq!(page(&written, begin, &[]), written);
    assert!(
        page(&written, begin, &[(UNDER_LOAD, "A table.\n".into())])
            .contains("## Under load\n\nA table.\n\n## A")
    );
}

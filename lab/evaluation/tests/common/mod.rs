//! The published measurements in `fixtures`.

use andreas_evaluation::table::Sample;

/// Rows of a table on at most so many nodes.
pub fn table(name: &str, most_nodes: u32) -> Vec<Sample> {
    let file = format!("{}/tests/fixtures/{name}.csv", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(file).unwrap();
    let sample = |line: &str| {
        let cells: Vec<&str> = line.split(',').collect();
        let number = |i: usize| cells[i].parse::<f64>().ok();
        Sample {
            profile: cells[0].to_owned(),
            model_family: (!cells[1].is_empty()).then(|| cells[1].to_owned()),
            params_m: number(2),
            batch: number(3),
            gpu_type: cells[4].to_owned(),
            gpus: cells[5].parse().unwrap(),
            nodes: cells[6].parse().unwrap(),
            power_limit_w: number(7),
            epoch_s: number(8),
            power_w: number(9),
        }
    };
    text.lines().skip(1).map(sample).filter(|s| s.nodes <= most_nodes).collect()
}

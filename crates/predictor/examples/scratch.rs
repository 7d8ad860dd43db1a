use andreas_predictor::evaluation::*;
use andreas_predictor::table::Sample;
fn read(p: &str) -> Vec<Sample> {
    let t = std::fs::read_to_string(p).unwrap();
    t.lines().skip(1).map(|l| {
        let f: Vec<&str> = l.split(',').collect();
        let n = |i: usize| f[i].parse::<f64>().ok();
        Sample { profile: f[0].into(), model_family: (!f[1].is_empty()).then(|| f[1].into()), params_m: n(2), batch: n(3), gpu_type: f[4].into(), gpus: f[5].parse().unwrap(), nodes: f[6].parse().unwrap(), power_limit_w: n(7), epoch_s: n(8), power_w: n(9) }
    }).collect()
}
fn main() {
    let args: Vec<String> = std::env::args().collect();
    let samples = read(&args[1]);
    let boards = |n: &str| { let w = |a: f64, b: f64| Some((andreas_core::Watts(a), andreas_core::Watts(b))); match n { "T4" => w(10.,70.), "A100" => w(52.,400.), "V100" => w(38.,300.), "K80" => w(26.,150.), "P100" => w(28.,250.), "A40" => w(30.,300.), "RTX6000" => w(30.,260.), _ => None } };
    let gpus = models(&samples, boards);
    let which: Vec<(&str, Setting)> = vec![("known", Setting::Known), ("first4", Setting::First(4)), ("first1", Setting::First(1)), ("first2", Setting::First(2)), ("new1", Setting::NewType(1)), ("new0", Setting::NewType(0)), ("nothing", Setting::Nothing)];
    for (name, setting) in which {
        if args.len() > 2 && !args[2].split(',').any(|a| a == name) { continue; }
        for hold in [HoldOut::Job, HoldOut::Model] {
            if args.len() > 3 && (args[3] == "job") != (hold == HoldOut::Job) { continue; }
            let q = questions(&samples, setting, hold);
            if q.is_empty() { continue; }
            let t = std::time::Instant::now();
            let o = ask(&q, &gpus);
            println!("{name} {hold:?}: n {} time {:.3} cover {:.3} | power {:.3} cover {:.3} | energy {:.3}   [{:.2?} / {} fits]", o.answers.len(), median(o.epoch_errors()), o.coverage(false), median(o.power_errors()), o.coverage(true), median(o.energy_errors()), t.elapsed(), q.len());
            print!("   baselines:");
            for b in Baseline::ALL { print!(" {} {:.3}", b.as_str(), median(ask_baseline(&q, b).epoch_errors().into_iter().filter(|e| e.is_finite()).collect())); }
            println!();
            if args.len() > 4 {
                for (job, o) in o.by_job() {
                    print!("     {job}: {:.3} cover {:.2} power {:.3} {:.2};", median(o.epoch_errors()), o.coverage(false), median(o.power_errors()), o.coverage(true));
                    let own: Vec<_> = q.iter().filter(|q| q.asked[0].profile == job).cloned().collect();
                    println!(" physics {:.3}", median(ask_baseline(&own, Baseline::Physics).epoch_errors().into_iter().filter(|e| e.is_finite()).collect()));
                }
            }
        }
    }
}

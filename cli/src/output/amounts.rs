//! Amounts as people read them.

/// Width of a duration's largest two units: `2d04h`, `1h05m`, `12m30s`, `45s`.
pub fn duration(seconds: i64) -> String {
    let s = seconds.max(0);
    match s {
        0..60 => format!("{s}s"),
        60..3600 => format!("{}m{:02}s", s / 60, s % 60),
        3600..86_400 => format!("{}h{:02}m", s / 3600, s % 3600 / 60),
        _ => format!("{}d{:02}h", s / 86_400, s % 86_400 / 3600),
    }
}

/// `in 1h05m`, or `12m30s ago`.
pub fn ago_or_in(seconds_from_now: i64) -> String {
    if seconds_from_now < 0 { ago(seconds_from_now) } else { format!("in {}", duration(seconds_from_now)) }
}

/// `12m30s ago` of something past. What lies ahead comes from a clock that is ahead, and counts as now.
pub fn ago(seconds_from_now: i64) -> String {
    format!("{} ago", duration(seconds_from_now.saturating_neg()))
}

/// Power: `420 W`, `12.3 kW`, `1.25 MW`.
pub fn power(watts: f64) -> String {
    match watts.abs() {
        w if w < 9_999.5 => format!("{watts:.0} W"),
        w if w < 999_500.0 => format!("{:.1} kW", watts / 1e3),
        _ => format!("{:.2} MW", watts / 1e6),
    }
}

/// Energy in joules as `0.042 kWh`, `12.40 kWh`, `1.240 MWh`.
pub fn energy(joules: i64) -> String {
    let kwh = joules as f64 / 3.6e6;
    match kwh.abs() {
        k if k < 9.9995 => format!("{kwh:.3} kWh"),
        k if k < 999.995 => format!("{kwh:.2} kWh"),
        _ => format!("{:.3} MWh", kwh / 1e3),
    }
}

/// Money in millionths of the currency, without its name: `0.31`, `0.0042`.
pub fn money(micros: i64) -> String {
    let amount = micros as f64 / 1e6;
    if amount.abs() < 0.095 && micros != 0 { format!("{amount:.4}") } else { format!("{amount:.2}") }
}

/// `42 %`.
pub fn percent(part: f64) -> String {
    format!("{:.0} %", 100.0 * part)
}

/// A bar of `width` characters, filled by `part` (0 to 1; what is beyond counts as full).
pub fn bar(part: f64, width: usize) -> String {
    let part = if part.is_finite() { part.clamp(0.0, 1.0) } else { 0.0 };
    let full = (part * width as f64).round() as usize;
    format!("[{}{}]", "█".repeat(full), "·".repeat(width.saturating_sub(full)))
}

/// `NVIDIA-A100-SXM4-80GB` as `A100`.
pub fn short_gpu_type(product: &str) -> &str {
    product.split('-').find(|part| !["NVIDIA", "Tesla", ""].contains(part)).unwrap_or(product)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_have_their_units() {
        let durations = [0, 59, 60, 3_661, 90_000].map(duration);
        assert_eq!(durations, ["0s", "59s", "1m00s", "1h01m", "1d01h"]);
        assert_eq!((ago_or_in(90).as_str(), ago_or_in(-5).as_str()), ("in 1m30s", "5s ago"));
        assert_eq!((ago(-90).as_str(), ago(0).as_str(), ago(5).as_str()), ("1m30s ago", "0s ago", "0s ago"));
        assert_eq!([420.4, 12_345.0, 1_250_000.0].map(power), ["420 W", "12.3 kW", "1.25 MW"]);
        assert_eq!([150_000, 44_640_000, 4_464_000_000].map(energy), ["0.042 kWh", "12.40 kWh", "1.240 MWh"]);
        assert_eq!([0, 4_200, 310_000, 12_000_000].map(money), ["0.00", "0.0042", "0.31", "12.00"]);
        assert_eq!(
            (bar(0.5, 4).as_str(), bar(7.0, 2).as_str(), bar(f64::NAN, 1).as_str()),
            ("[██··]", "[██]", "[·]")
        );
        assert_eq!(
            ["NVIDIA-A100-SXM4-80GB", "Tesla-T4", "A10G", "-"].map(short_gpu_type),
            ["A100", "T4", "A10G", "-"]
        );
        assert_eq!(ago_or_in(i64::MIN).split_once(' ').map(|pair| pair.1), Some("ago"));
    }
}

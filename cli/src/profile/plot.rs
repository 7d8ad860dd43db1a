//! Curves and points over the number of GPUs, for the terminal and as SVG. Both axes are logarithmic.

use std::fmt::Write;

use super::fit::seconds;

/// One GPU type: the curve with its interval, and what was measured.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Series {
    pub name: String,
    /// GPUs, seconds per epoch: median and interval of 90 %.
    pub curve: Vec<(u32, [f64; 3])>,
    /// GPUs and seconds per epoch.
    pub points: Vec<(u32, f64)>,
}

struct Scale {
    x: (f64, f64),
    y: (f64, f64),
}

fn log(gpus: u32) -> f64 {
    f64::from(gpus.max(1)).log2()
}

impl Scale {
    fn of(series: &[Series]) -> Self {
        let mut it = Self { x: (0.0, 1.0), y: (f64::INFINITY, f64::NEG_INFINITY) };
        for s in series {
            let curve = s.curve.iter().map(|(g, at)| (*g, at[0]));
            for (gpus, time) in curve.chain(s.points.iter().copied()) {
                it.x.1 = it.x.1.max(log(gpus));
                it.y = (it.y.0.min(time.ln()), it.y.1.max(time.ln()));
            }
        }
        if !(it.y.0.is_finite() && it.y.1 > it.y.0) {
            let at = if it.y.0.is_finite() { it.y.0 } else { 0.0 };
            it.y = (at - 0.5, at + 0.5);
        }
        it
    }

    /// From 0, left, to 1.
    fn across(&self, gpus: u32) -> f64 {
        (log(gpus) - self.x.0) / (self.x.1 - self.x.0)
    }

    /// From 0, top, to 1; beyond the drawing it stays at its edge.
    fn down(&self, time: f64) -> f64 {
        ((self.y.1 - time.ln()) / (self.y.1 - self.y.0)).clamp(0.0, 1.0)
    }
}

/// Letters for measured points, one for each type; curves are dots of the type's letter in small.
const MARKS: [(char, char); 8] =
    [('A', 'a'), ('B', 'b'), ('C', 'c'), ('D', 'd'), ('E', 'e'), ('F', 'f'), ('G', 'g'), ('H', 'h')];

/// As lines of text.
pub(super) fn text(title: &str, series: &[Series]) -> String {
    const WIDTH: usize = 72;
    const HEIGHT: usize = 20;
    let scale = Scale::of(series);
    let mut grid = vec![vec![' '; WIDTH]; HEIGHT];
    let place = |gpus: u32, time: f64| {
        let x = (scale.across(gpus) * (WIDTH - 1) as f64).round() as usize;
        let y = (scale.down(time) * (HEIGHT - 1) as f64).round() as usize;
        (x.min(WIDTH - 1), y.min(HEIGHT - 1))
    };
    for (s, (_, small)) in series.iter().zip(MARKS) {
        for (gpus, at) in &s.curve {
            let (x, y) = place(*gpus, at[0]);
            grid[y][x] = small;
        }
    }
    for (s, (large, _)) in series.iter().zip(MARKS) {
        for (gpus, time) in &s.points {
            let (x, y) = place(*gpus, *time);
            grid[y][x] = large;
        }
    }
    let mut out = format!("{title}: seconds per epoch over GPUs, both logarithmic\n");
    for (y, row) in grid.iter().enumerate() {
        let label = match y {
            0 => seconds(scale.y.1.exp()),
            y if y == HEIGHT - 1 => seconds(scale.y.0.exp()),
            y if y == HEIGHT / 2 => seconds(f64::midpoint(scale.y.0, scale.y.1).exp()),
            _ => String::new(),
        };
        let _ = writeln!(out, "{label:>10} |{}", row.iter().collect::<String>().trim_end());
    }
    let mut axis = vec![' '; WIDTH + 4];
    let mut gpus = 1u32;
    while log(gpus) <= scale.x.1 + 1e-9 {
        let x = (scale.across(gpus) * (WIDTH - 1) as f64).round() as usize;
        for (i, c) in gpus.to_string().chars().enumerate() {
            if let Some(cell) = axis.get_mut(x + i) {
                *cell = c;
            }
        }
        gpus = gpus.saturating_mul(2);
    }
    let _ = writeln!(out, "{:>10} +{}", "", "-".repeat(WIDTH));
    let _ = writeln!(out, "{:>10}  {} GPUs", "", axis.iter().collect::<String>().trim_end());
    for (s, (large, small)) in series.iter().zip(MARKS) {
        let _ =
            writeln!(out, "  {large} measured, {small} predicted: {} ({} points)", s.name, s.points.len());
    }
    if series.len() > MARKS.len() {
        let _ = writeln!(out, "  and {} types more", series.len() - MARKS.len());
    }
    out
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// Colours that are told apart by most eyes (Okabe and Ito).
const COLOURS: [&str; 7] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000"];

/// As a picture that stands by itself.
pub(super) fn svg(title: &str, series: &[Series]) -> String {
    const WIDTH: f64 = 760.0;
    const HEIGHT: f64 = 440.0;
    const LEFT: f64 = 80.0;
    const TOP: f64 = 40.0;
    let scale = Scale::of(series);
    let x = |gpus: u32| LEFT + scale.across(gpus) * (WIDTH - LEFT - 20.0);
    let y = |time: f64| TOP + scale.down(time) * (HEIGHT - TOP - 50.0);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" \
         font-family=\"sans-serif\" font-size=\"12\"><title>{0}</title>\
         <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"#ffffff\"/>\
         <text x=\"{LEFT}\" y=\"20\" font-size=\"15\">{0}: seconds per epoch over GPUs</text>\n",
        escape(title)
    );
    let mut gpus = 1u32;
    while log(gpus) <= scale.x.1 + 1e-9 {
        let _ = writeln!(
            out,
            "<line x1=\"{0:.1}\" x2=\"{0:.1}\" y1=\"{TOP}\" y2=\"{1:.1}\" stroke=\"#dddddd\"/>\
             <text x=\"{0:.1}\" y=\"{2:.1}\" text-anchor=\"middle\">{gpus}</text>",
            x(gpus),
            HEIGHT - 50.0,
            HEIGHT - 34.0
        );
        gpus = gpus.saturating_mul(2);
    }
    for part in 0..=4 {
        let time = (scale.y.0 + f64::from(part) / 4.0 * (scale.y.1 - scale.y.0)).exp();
        let _ = writeln!(
            out,
            "<line x1=\"{LEFT}\" x2=\"{0:.1}\" y1=\"{1:.1}\" y2=\"{1:.1}\" stroke=\"#dddddd\"/>\
             <text x=\"{2:.1}\" y=\"{3:.1}\" text-anchor=\"end\">{4}</text>",
            WIDTH - 20.0,
            y(time),
            LEFT - 6.0,
            y(time) + 4.0,
            seconds(time)
        );
    }
    for (i, s) in series.iter().enumerate() {
        let colour = COLOURS[i % COLOURS.len()];
        let path = |of: &dyn Fn(&[f64; 3]) -> f64, reverse: bool| {
            let mut points: Vec<String> =
                s.curve.iter().map(|(g, at)| format!("{:.1},{:.1}", x(*g), y(of(at)))).collect();
            if reverse {
                points.reverse();
            }
            points.join(" ")
        };
        let _ = writeln!(
            out,
            "<polygon points=\"{} {}\" fill=\"{colour}\" fill-opacity=\"0.12\"/>\
             <polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.5\"/>",
            path(&|at| at[1], false),
            path(&|at| at[2], true),
            path(&|at| at[0], false)
        );
        for (gpus, time) in &s.points {
            let _ = writeln!(
                out,
                "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"3\" fill=\"{colour}\"/>",
                x(*gpus),
                y(*time)
            );
        }
        let _ = writeln!(
            out,
            "<text x=\"{:.1}\" y=\"{:.1}\" fill=\"{colour}\">{} ({} points)</text>",
            LEFT + 200.0 * (i % 3) as f64,
            HEIGHT - 16.0 + 14.0 * (i / 3) as f64,
            escape(&s.name),
            s.points.len()
        );
    }
    out.push_str("</svg>\n");
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series() -> Series {
        let curve =
            (1..=8).map(|g| (g, [80.0 / f64::from(g), 70.0 / f64::from(g), 90.0 / f64::from(g)])).collect();
        Series { name: "A<100".to_owned(), curve, points: vec![(1, 80.0), (8, 11.0)] }
    }

    #[test]
    fn points_stand_where_they_were_measured_and_names_cannot_break_the_picture() {
        let drawn = text("bert", &[series()]);
        let lines: Vec<&str> = drawn.lines().collect();
        assert!(lines[1].contains("80.000 s |A"), "{drawn}");
        assert!(drawn.contains("2 points") && drawn.contains('a'), "{drawn}");
        let drawn = svg("bert & co", &[series()]);
        assert_eq!(drawn.matches("<circle").count(), 2);
        assert!(drawn.contains("A&lt;100") && drawn.contains("bert &amp; co") && !drawn.contains("A<100"));
    }

    #[test]
    fn nothing_and_one_point_can_be_drawn() {
        assert!(text("x", &[]).contains("GPUs"));
        let one = Series { points: vec![(1, 5.0)], ..Series::default() };
        assert!(text("x", std::slice::from_ref(&one)).contains('A'));
        assert!(svg("x", &[one]).contains("<circle"));
    }
}

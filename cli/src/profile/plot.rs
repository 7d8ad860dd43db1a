//! Curves and points over the number of GPUs, for the terminal and as SVG. All axes are logarithmic.

mod picture;

use std::fmt::Write;

use super::fit::seconds;

pub(super) use picture::svg;

/// What was measured of one configuration.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Point {
    pub gpus: u32,
    pub value: f64,
    /// With the batch, the nodes and the limit that the curve is drawn for.
    pub on_curve: bool,
}

/// One GPU type: the curve with its interval, and what was measured.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Series {
    pub name: String,
    /// GPUs, value: median and interval of 90 %.
    pub curve: Vec<(u32, [f64; 3])>,
    pub points: Vec<Point>,
}

/// What a chart is of.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Measure {
    Epoch,
    Power,
}

impl Measure {
    fn title(self) -> &'static str {
        match self {
            Self::Epoch => "seconds per epoch",
            Self::Power => "watts of all GPUs",
        }
    }

    fn label(self, value: f64) -> String {
        match self {
            Self::Epoch => seconds(value),
            Self::Power if value >= 10_000.0 => format!("{:.0} kW", value / 1_000.0),
            Self::Power => format!("{value:.0} W"),
        }
    }
}

/// Series that share two axes.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Chart {
    pub measure: Measure,
    pub series: Vec<Series>,
}

struct Scale {
    x: (f64, f64),
    y: (f64, f64),
}

/// How much of an interval is drawn beyond what is measured and predicted: this factor.
const BEYOND: f64 = 3.0;

fn log(gpus: u32) -> f64 {
    f64::from(gpus.max(1)).log2()
}

impl Scale {
    /// Holds every point and every curve, and of the intervals as much as leaves these readable.
    fn new(series: &[Series], intervals: bool) -> Self {
        let mut it = Self { x: (0.0, 1.0), y: (f64::INFINITY, f64::NEG_INFINITY) };
        let mut take = |gpus: u32, value: f64| {
            it.x.1 = it.x.1.max(log(gpus));
            if value > 0.0 && value.is_finite() {
                it.y = (it.y.0.min(value.ln()), it.y.1.max(value.ln()));
            }
        };
        for s in series {
            s.curve.iter().for_each(|(gpus, at)| take(*gpus, at[0]));
            s.points.iter().for_each(|point| take(point.gpus, point.value));
        }
        if intervals && it.y.0.is_finite() {
            let (least, most) = (it.y.0 - BEYOND.ln(), it.y.1 + BEYOND.ln());
            for at in series.iter().flat_map(|s| &s.curve).map(|(_, at)| at) {
                it.y = (it.y.0.min(at[1].ln().max(least)), it.y.1.max(at[2].ln().min(most)));
            }
        }
        if !(it.y.0.is_finite() && it.y.1 > it.y.0) {
            let at = if it.y.0.is_finite() { it.y.0 } else { 0.0 };
            it.y = (at - 0.5, at + 0.5);
        }
        it
    }

    /// Horizontal position of a number of GPUs: 0 at the left edge, 1 at the right.
    fn x(&self, gpus: u32) -> f64 {
        (log(gpus) - self.x.0) / (self.x.1 - self.x.0)
    }

    /// Vertical position of a value: 0 at the top edge, 1 at the bottom; outside that range for values off the chart.
    fn y(&self, value: f64) -> f64 {
        (self.y.1 - value.ln()) / (self.y.1 - self.y.0)
    }

    /// Powers of two that are on the axis.
    fn counts(&self) -> impl Iterator<Item = u32> + '_ {
        (0..=16).map(|power| 1_u32 << power).take_while(|gpus| log(*gpus) <= self.x.1 + 1e-9)
    }
}

/// Letters for measured points, one for each type; curves are dots of the type's letter in small.
const MARKS: [(char, char); 8] =
    [('A', 'a'), ('B', 'b'), ('C', 'c'), ('D', 'd'), ('E', 'e'), ('F', 'f'), ('G', 'g'), ('H', 'h')];

/// As lines of text.
pub(super) fn text(title: &str, charts: &[Chart]) -> String {
    charts.iter().map(|chart| render(title, chart)).collect::<Vec<_>>().join("\n")
}

fn render(title: &str, Chart { measure, series }: &Chart) -> String {
    const WIDTH: usize = 72;
    const HEIGHT: usize = 20;
    let scale = Scale::new(series, false);
    let mut grid = vec![vec![' '; WIDTH]; HEIGHT];
    let place = |gpus: u32, value: f64| {
        let x = (scale.x(gpus) * (WIDTH - 1) as f64).round() as usize;
        let y = (scale.y(value).clamp(0.0, 1.0) * (HEIGHT - 1) as f64).round() as usize;
        (x.min(WIDTH - 1), y.min(HEIGHT - 1))
    };
    for (s, (_, small)) in series.iter().zip(MARKS) {
        for (gpus, at) in &s.curve {
            let (x, y) = place(*gpus, at[0]);
            grid[y][x] = small;
        }
    }
    for (s, (large, _)) in series.iter().zip(MARKS) {
        for point in &s.points {
            let (x, y) = place(point.gpus, point.value);
            grid[y][x] = large;
        }
    }
    let mut out = format!("{title}: {} over GPUs, both logarithmic\n", measure.title());
    for (y, row) in grid.iter().enumerate() {
        let label = match y {
            0 => measure.label(scale.y.1.exp()),
            y if y == HEIGHT - 1 => measure.label(scale.y.0.exp()),
            y if y == HEIGHT / 2 => {
                let part = y as f64 / (HEIGHT - 1) as f64;
                measure.label((scale.y.1 - part * (scale.y.1 - scale.y.0)).exp())
            }
            _ => String::new(),
        };
        let _ = writeln!(out, "{label:>10} |{}", row.iter().collect::<String>().trim_end());
    }
    let mut axis = vec![' '; WIDTH + 4];
    for gpus in scale.counts() {
        let x = (scale.x(gpus) * (WIDTH - 1) as f64).round() as usize;
        for (i, c) in gpus.to_string().chars().enumerate() {
            if let Some(cell) = axis.get_mut(x + i) {
                *cell = c;
            }
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn series() -> Series {
        let curve =
            (1..=8).map(|g| (g, [80.0 / f64::from(g), 70.0 / f64::from(g), 90.0 / f64::from(g)])).collect();
        let points =
            [(1, 80.0), (8, 11.0)].map(|(gpus, value)| Point { gpus, value, on_curve: gpus == 1 }).to_vec();
        Series { name: "A<100".to_owned(), curve, points }
    }

    fn chart(series: Vec<Series>) -> Vec<Chart> {
        vec![Chart { measure: Measure::Epoch, series }]
    }

    #[test]
    fn points_stand_where_they_were_measured_and_names_cannot_break_the_picture() {
        let drawn = text("bert", &chart(vec![series()]));
        let lines: Vec<&str> = drawn.lines().collect();
        assert!(lines[1].contains("80.000 s |A"), "{drawn}");
        assert!(drawn.contains("2 points") && drawn.contains('a'), "{drawn}");
        let drawn = svg("bert & co", &chart(vec![series()]));
        assert_eq!(drawn.matches("<circle").count(), 2);
        assert!(drawn.contains("A&lt;100") && drawn.contains("bert &amp; co") && !drawn.contains("A<100"));
    }

    #[test]
    fn nothing_and_one_point_can_be_drawn() {
        assert!(text("x", &chart(Vec::new())).contains("GPUs"));
        assert!(svg("x", &[]).ends_with("</svg>\n"));
        let point = Point { gpus: 1, value: 5.0, on_curve: true };
        let one = chart(vec![Series { points: vec![point], ..Series::default() }]);
        assert!(text("x", &one).contains('A'));
        assert!(svg("x", &one).contains("<circle"));
    }
}

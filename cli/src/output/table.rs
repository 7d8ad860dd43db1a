//! Tables as kubectl prints them: no lines, headings in capitals, three spaces between columns.

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};

/// Spaces between two columns.
const GAP: u16 = 3;
/// Most characters of a cell.
const MAX_CELL: usize = 200;

/// A column of a table of `T`.
pub struct Column<T> {
    title: &'static str,
    right: bool,
    wide: bool,
    cell: fn(&T) -> String,
}

impl<T> Column<T> {
    /// A column of text.
    pub const fn text(title: &'static str, cell: fn(&T) -> String) -> Self {
        Self { title, right: false, wide: false, cell }
    }

    /// A column of numbers, aligned to the right.
    pub const fn number(title: &'static str, cell: fn(&T) -> String) -> Self {
        Self { title, right: true, wide: false, cell }
    }

    /// Shown with `-o wide` only.
    #[must_use]
    pub const fn wide(mut self) -> Self {
        self.wide = true;
        self
    }
}

/// The rows as a table; an empty cell is `-`.
pub fn table<T>(columns: &[Column<T>], rows: &[T], wide: bool, headers: bool) -> String {
    let shown: Vec<&Column<T>> = columns.iter().filter(|column| wide || !column.wide).collect();
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    if headers {
        table.set_header(shown.iter().map(|column| column.title));
    }
    for row in rows {
        table.add_row(shown.iter().map(|column| {
            let cell = plain(&(column.cell)(row));
            if cell.is_empty() { "-".to_owned() } else { cell }
        }));
    }
    for (at, column) in table.column_iter_mut().enumerate() {
        let last = at + 1 == shown.len();
        column.set_padding((0, if last { 0 } else { GAP }));
        if shown[at].right {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.lines().map(|line| line.trim_end().to_owned() + "\n").collect()
}

/// Whether a character moves the cursor, or turns the order of those after it round.
pub fn moves(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{061c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Lines that cannot move a terminal's cursor.
pub fn plain_lines(text: &str) -> String {
    text.chars().map(|c| if moves(c) && c != '\n' { ' ' } else { c }).collect()
}

/// Text that cannot move a terminal's cursor, bounded.
pub fn plain(text: &str) -> String {
    let clean = text.chars().map(|c| if moves(c) { ' ' } else { c });
    if text.chars().count() <= MAX_CELL {
        return clean.collect();
    }
    clean.take(MAX_CELL - 1).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_and_empty_cells_are_marked() {
        type Row = (&'static str, u32);
        let gpus = |row: &Row| if row.1 == 0 { String::new() } else { row.1.to_string() };
        let columns = [Column::text("JOB", |row: &Row| row.0.into()), Column::number("GPUS", gpus)];
        let rows = [("long-name", 16), ("b", 0)];
        assert_eq!(
            table(&columns, &rows, false, true),
            "JOB         GPUS\nlong-name     16\nb              -\n"
        );
        assert_eq!(table(&columns, &[], false, true), "JOB   GPUS\n");
        assert_eq!(table(&columns, &rows[1..], false, false), "b   -\n");
    }

    #[test]
    fn a_cell_cannot_move_the_cursor_or_fill_the_screen() {
        assert_eq!(plain("a\u{1b}[2Jb\r\n"), "a [2Jb  ");
        assert_eq!(plain("gpj\u{202e}exe"), "gpj exe");
        assert_eq!(plain(&"x".repeat(10_000)).chars().count(), MAX_CELL);
    }
}

//! Plain aligned tables for people: numbers right, words left, two blanks between columns.

use std::fmt;

/// What stands in a cell of which nothing is known; among numbers it stands right.
pub const UNKNOWN: &str = "-";

/// A table with a heading. Every row has as many cells as the heading.
#[derive(Clone, Debug)]
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table without rows.
    #[must_use]
    pub fn new<const N: usize>(heading: [&str; N]) -> Table {
        Table::with_heading(heading.map(str::to_owned).to_vec())
    }

    /// A table without rows whose columns are known only at run time.
    #[must_use]
    pub fn with_heading(heading: Vec<String>) -> Table {
        Table { rows: vec![heading] }
    }

    /// Adds a row.
    ///
    /// # Panics
    /// If the number of cells is not that of the heading.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        let cells: Vec<String> = cells.into_iter().collect();
        assert_eq!(cells.len(), self.rows[0].len(), "a row has as many cells as the heading");
        self.rows.push(cells);
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = 0..self.rows[0].len();
        let width =
            |column: usize| self.rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = columns.clone().map(width).collect();
        let numeric = |column: usize| {
            let mut cells = self.rows[1..].iter().map(|row| &row[column]);
            let number = |cell: &String| cell.starts_with(|c: char| c.is_ascii_digit()) || cell == UNKNOWN;
            self.rows.len() > 1 && cells.all(number)
        };
        let right: Vec<bool> = columns.map(numeric).collect();
        for (index, row) in self.rows.iter().enumerate() {
            let cells = row.iter().zip(&widths).zip(&right).map(|((cell, width), right)| match right {
                true => format!("{cell:>width$}"),
                false => format!("{cell:width$}"),
            });
            let line = cells.collect::<Vec<_>>().join("  ");
            let end = if index + 1 < self.rows.len() { "\n" } else { "" };
            write!(f, "{}{end}", line.trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_right_and_words_left() {
        let mut table = Table::new(["what", "count"]);
        table.row(["a".to_owned(), "7".to_owned()]);
        table.row(["longer".to_owned(), "1234567".to_owned()]);
        assert_eq!(table.to_string(), "what      count\na             7\nlonger  1234567");
        table.row(["x".to_owned(), UNKNOWN.to_owned()]);
        assert!(table.to_string().ends_with("1234567\nx             -"));
    }
}

//! Columns of text; numbers stand to the right.

use std::fmt;

pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    pub fn new(head: &[&str]) -> Self {
        Self { rows: vec![head.iter().map(|&word| word.to_owned()).collect()] }
    }

    pub fn row(&mut self, cells: &[String]) {
        self.rows.push(cells.to_vec());
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        for (index, row) in self.rows.iter().enumerate() {
            let mut line = String::new();
            for (cell, width) in row.iter().zip(&widths) {
                let starts_as_number = cell.starts_with(|first: char| first.is_ascii_digit() || first == '-');
                // A number, or one with its unit; a sentence may start with a number too.
                let is_number = starts_as_number && cell.split(' ').count() <= 2;
                line += &if is_number { format!("{cell:>width$}  ") } else { format!("{cell:<width$}  ") };
            }
            writeln!(f, "{}", line.trim_end())?;
            if index == 0 {
                writeln!(f, "{}", "-".repeat(widths.iter().map(|width| width + 2).sum::<usize>().saturating_sub(2)))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_stand_left_and_numbers_right() {
        let mut table = Table::new(&["step", "seconds"]);
        table.row(&["format".into(), "0.9".into()]);
        table.row(&["8 at a time".into(), "12.0 s".into()]);
        assert_eq!(
            table.to_string(),
            "step         seconds\n--------------------\nformat           0.9\n8 at a time   12.0 s\n"
        );
    }
}

// SPDX-License-Identifier: Apache-2.0
//! Rows under headings, each column as wide as its widest cell.

/// Lines; a row has as many cells as there are headings.
pub(crate) fn render(headings: &[&str], rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        let widest = cells.map(|cell| cell.chars().count()).max();
        widest.unwrap_or_default().max(headings[column].len())
    };
    let widths: Vec<usize> = (0..headings.len()).map(width).collect();
    let line = |cells: Vec<&str>| {
        let padded = cells.iter().zip(&widths);
        let padded: Vec<String> = padded
            .map(|(cell, width)| format!("{cell:width$}"))
            .collect();
        padded.join("  ").trim_end().to_owned() + "\n"
    };
    let mut text = line(headings.to_vec());
    for row in rows {
        text += &line(row.iter().map(String::as_str).collect());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [["shop", "1"], ["a", "22"]].map(|row| row.map(str::to_owned).to_vec());
        assert_eq!(
            render(&["NS", "COUNT"], &rows),
            "NS    COUNT\nshop  1\na     22\n"
        );
        assert_eq!(render(&["NS"], &[]), "NS\n");
    }
}

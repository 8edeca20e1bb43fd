"""The dashboard: pages that the server renders, and keeps up to date in the browser.

A page is a `View`: a template, and a function that reads what it shows. The blocks of its template that are named
`live_...` are sent again whenever they have changed (`live`), so a page is written once. `docs/dashboard.md` is the
way of its users, `docs/design/0013-the-dashboard.md` why it is built like this.
"""

"""The page and its API over HTTP: one seam, ``questions.ask``, behind routes, limits and headers.

app       the application: routes and what guards them
limits    what a request may be: its host, its size, how many at once
searches  searches for plans in a process of their own, told as events, ended when nobody listens
static/   the page, which the site without a server shows too
"""

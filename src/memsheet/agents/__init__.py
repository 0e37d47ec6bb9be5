"""For programs that ask on somebody's behalf: questions as tools of the Model Context Protocol, and a
skill, which says in words when to ask which command.
"""

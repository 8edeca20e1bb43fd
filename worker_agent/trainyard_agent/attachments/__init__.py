"""Attachments of people to the replicas of this agent."""
